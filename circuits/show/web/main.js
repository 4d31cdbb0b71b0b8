// The page of a file.

import { start } from "./page.js";

start();
