// A page that is a file has nobody to ask.

const live = null;
