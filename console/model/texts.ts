/** Compares texts as people do: `build-2` comes before `build-10`. */
export const compareTexts: (one: string, other: string) => number = new Intl.Collator('en', {
  numeric: true,
}).compare;
