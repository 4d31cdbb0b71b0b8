// The live page: what a page of a file does, and questions to the server that it came from.

import { startAsking } from "./ask.js";
import { start } from "./page.js";

const openedAt = location.hash; // what the link said, before the page writes its own address
start();
startAsking(openedAt);
