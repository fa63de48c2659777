/** Styles of the characters of a terminal: sixteen colours, bold, underlined and inverse. */

export interface TerminalStyle {
  /** Number of the colour, from 0 to 15. It is undefined for the usual one. */
  readonly text: number | undefined;
  readonly ground: number | undefined;
  readonly isBold: boolean;
  readonly isUnderlined: boolean;
  readonly isInverse: boolean;
}

export const PLAIN: TerminalStyle = {
  text: undefined,
  ground: undefined,
  isBold: false,
  isUnderlined: false,
  isInverse: false,
};

/** Changes by the number of the attribute (ECMA-48, section 8.3.117). */
const CHANGES: ReadonlyMap<number, Partial<TerminalStyle>> = new Map<number, Partial<TerminalStyle>>([
  [0, PLAIN],
  [1, { isBold: true }],
  [4, { isUnderlined: true }],
  [7, { isInverse: true }],
  [22, { isBold: false }],
  [24, { isUnderlined: false }],
  [27, { isInverse: false }],
  [39, { text: undefined }],
  [49, { ground: undefined }],
  ...Array.from({ length: 8 }, (_, colour): [number, Partial<TerminalStyle>][] => [
    [30 + colour, { text: colour }],
    [40 + colour, { ground: colour }],
    [90 + colour, { text: colour + 8 }],
    [100 + colour, { ground: colour + 8 }],
  ]).flat(),
]);
/** Attributes that begin a colour of a larger set. */
const LARGER_SETS: ReadonlyMap<number, 'text' | 'ground'> = new Map([
  [38, 'text'],
  [48, 'ground'],
]);

/** Returns the style after the attributes. No attribute means the plain style. Unknown ones change nothing. */
export function changeStyle(style: TerminalStyle, attributes: readonly number[]): TerminalStyle {
  let next = attributes.length === 0 ? PLAIN : style;
  for (let index = 0; index < attributes.length; index += 1) {
    const attribute = attributes[index] ?? 0;
    const part = LARGER_SETS.get(attribute);
    if (part === undefined) {
      next = { ...next, ...CHANGES.get(attribute) };
      continue;
    }
    const { colour, length } = largerColour(attributes.slice(index + 1));
    next = { ...next, [part]: colour };
    index += length;
  }
  return next;
}

/** Returns the nearest of the sixteen colours, and the number of attributes that name it. */
function largerColour([set, ...values]: readonly number[]): { colour: number | undefined; length: number } {
  if (set === 5) {
    return { colour: paletteColour(values[0] ?? 0), length: 2 };
  }
  if (set === 2) {
    const [red = 0, green = 0, blue = 0] = values;
    return { colour: nearestColour(red, green, blue), length: 4 };
  }
  return { colour: undefined, length: 1 };
}

/** Returns the nearest of the sixteen colours for one of a palette of 256: sixteen colours, a cube of 6 × 6 × 6, and 24 greys. */
function paletteColour(number: number): number {
  if (number < 16) {
    return number;
  }
  if (number >= 232) {
    const grey = 8 + (number - 232) * 10;
    return nearestColour(grey, grey, grey);
  }
  const [red, green, blue] = [36, 6, 1].map((step) => (Math.floor((number - 16) / step) % 6) * 51);
  return nearestColour(red ?? 0, green ?? 0, blue ?? 0);
}

function nearestColour(...parts: [red: number, green: number, blue: number]): number {
  const largest = Math.max(...parts);
  if (largest < 64) {
    return 0;
  }
  const bits = parts.reduce((sum, part, index) => sum + (part * 2 > largest ? 1 << index : 0), 0);
  // Dark grey is the bright form of black.
  const isGrey = bits === 7 && largest < 160;
  return isGrey ? 8 : bits + (largest >= 192 ? 8 : 0);
}

/** Returns the CSS classes of the style, separated by spaces. */
export function styleName({ text, ground, isBold, isUnderlined, isInverse }: TerminalStyle): string {
  return [
    text === undefined ? '' : `text-${text}`,
    ground === undefined ? '' : `ground-${ground}`,
    isBold ? 'bold' : '',
    isUnderlined ? 'underlined' : '',
    isInverse ? 'inverse' : '',
  ]
    .filter((name) => name !== '')
    .join(' ');
}
