// Open the page where its address says.

const openedAt = location.hash; // what the link said, before the page writes its own
readAddress();
listen();
showGroup();
if (live) live.start();
