/**
 * Reads and fills templates in the form of `kubectl -o jsonpath=…`. A template can contain these parts: text, `{.field.field}`,
 * `{['field']}`, `{[0]}`, `{[-1]}`, `{[*]}`, `{"text"}`, and `{range PATH}…{end}`. Other parts of kubectl's templates, for example filters
 * and slices, are refused. Users who need such parts can pass JSON to a program like jq.
 */

type Step = { readonly field: string } | { readonly index: number } | 'all';

type Part =
  | { readonly text: string }
  | { readonly path: readonly Step[] }
  | { readonly range: readonly Step[]; readonly body: readonly Part[] };

export type Template = readonly Part[];

const RANGE = '{range ';
const FIELD = /^\.([\w-]+)/;
const QUOTED_FIELD = /^\[(?:'([^'\]]+)'|"([^"\]]+)")\]/;
const INDEX = /^\[(-?\d{1,9})\]/;
const ALL = /^(?:\[\*\]|\.\*)/;

/** Returns the template that the text describes. @throws Error that names the part that is wrong or not supported. */
export function templateIn(text: string): Template {
  const pieces = piecesOf(text);
  const template = partsIn(pieces);
  if (pieces.length > 0) {
    throw new Error('{end} has no {range}');
  }
  return template;
}

/**
 * Removes the pieces before the next `{end}` from the list, and returns the parts that these pieces describe. If no `{end}` follows,
 * removes all pieces.
 */
function partsIn(pieces: string[]): Part[] {
  const parts: Part[] = [];
  while (pieces.length > 0 && pieces[0] !== '{end}') {
    const piece = pieces.shift() ?? '';
    parts.push(piece.startsWith(RANGE) ? rangeIn(piece, pieces) : partIn(piece));
  }
  return parts;
}

function rangeIn(piece: string, pieces: string[]): Part {
  const part = { range: pathIn(piece.slice(RANGE.length, -1).trim()), body: partsIn(pieces) };
  if (pieces.shift() === undefined) {
    throw new Error('{range} has no {end}');
  }
  return part;
}

/**
 * Splits the text into pieces. A piece is `{…}`, or text outside of braces. A brace in quotation marks does not end a piece.
 *
 * @throws Error for a brace without its pair.
 */
function piecesOf(text: string): string[] {
  const pieces = [...text.matchAll(/\{(?:"(?:\\.|[^"\\])*"|'[^']*'|[^{}"'])*\}|[^{}]+|[{}]/g)].map(
    ([piece]) => piece,
  );
  const stray = pieces.find((piece) => piece === '{' || piece === '}');
  if (stray !== undefined) {
    throw new Error(`the brace ${stray} has no matching brace`);
  }
  return pieces;
}

function partIn(piece: string): Part {
  if (!piece.startsWith('{')) {
    return { text: piece };
  }
  const inner = piece.slice(1, -1).trim();
  if (!inner.startsWith('"')) {
    return { path: pathIn(inner) };
  }
  try {
    return { text: String(JSON.parse(inner)) };
  } catch {
    throw new Error(`${inner} is not a valid text in quotation marks`);
  }
}

function pathIn(text: string): Step[] {
  const steps: Step[] = [];
  // `@`, `$` and a single dot stand for the object itself.
  let rest = text.replace(/^[@$]/, '').replace(/^\.(?=$|\[)/, '');
  while (rest !== '') {
    const match = FIELD.exec(rest) ?? QUOTED_FIELD.exec(rest) ?? INDEX.exec(rest) ?? ALL.exec(rest);
    if (match === null) {
      throw new Error(
        `${rest} is not supported. Use .field, ['field'], [0], [*] or {range}, or -o json with jq`,
      );
    }
    steps.push(stepOf(match[0], match[1] ?? match[2]));
    rest = rest.slice(match[0].length);
  }
  return steps;
}

function stepOf(whole: string, value: string | undefined): Step {
  if (value === undefined) {
    return 'all';
  }
  return INDEX.test(whole) ? { index: Number(value) } : { field: value };
}

/**
 * Fills the template with the value, and returns the text. As in kubectl, an absent field gives no text, and spaces separate several
 * values.
 */
export function render(template: Template, value: unknown): string {
  return template
    .map((part) => {
      if ('text' in part) {
        return part.text;
      }
      return 'path' in part
        ? valuesAt(value, part.path).map(textOf).join(' ')
        : valuesAt(value, part.range)
            .map((one) => render(part.body, one))
            .join('');
    })
    .join('');
}

function valuesAt(value: unknown, path: readonly Step[]): unknown[] {
  // The items of a list can have fields with the value undefined. JSON leaves out such fields, so they count as absent.
  return path.reduce<unknown[]>(
    (values, step) => values.flatMap((one) => inside(one, step)).filter((one) => one !== undefined),
    [value],
  );
}

function inside(value: unknown, step: Step): unknown[] {
  if (typeof value !== 'object' || value === null) {
    return [];
  }
  if (step === 'all') {
    return Object.values(value);
  }
  if ('index' in step) {
    return Array.isArray(value) ? [value.at(step.index)] : [];
  }
  return Object.hasOwn(value, step.field) ? [(value as Record<string, unknown>)[step.field]] : [];
}

function textOf(value: unknown): string {
  return typeof value === 'string' ? value : JSON.stringify(value);
}
