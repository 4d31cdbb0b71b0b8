// Questions to begin with. The key is the last token of its spelling; an example that names a model is
// offered where that model is.

export const EXAMPLES = [
  { name: "opposite", prompt: 'The opposite of "large" is "', key: "large", other: "hot" },
  {
    name: "names",
    prompt: "When Mary and John went to the store, John gave a drink to",
    key: "John",
    other: "Mary",
  },
  { name: "year", prompt: "The war lasted from the year 1732 to the year 17", key: "32", other: "02" },
  { name: "sum", prompt: "3 6 + 2 8 = 0", key: "8", other: "1", model: "addition" },
  {
    name: "repeat",
    prompt: " blunt clock mirror fresh lying farm blunt clock mirror",
    key: "fresh",
    other: "lying",
  },
  { name: "fact", prompt: "The capital of France is", key: "France", other: "Germany", model: "smollm2" },
];
