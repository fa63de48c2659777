/** Finds the texts that the programs show to users. */
import { globSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { parseSync } from 'oxc-parser';
import { WINGS } from './lint/layers.ts';

/** Wings whose texts users read. */
const SPEAKING = Object.keys(WINGS).filter((wing) => wing !== 'hack' && wing !== 'test');
/** Words that a text has at least to count as a message. */
const SENTENCE_LENGTH = 3;

/** Part of a syntax tree, as far as texts need it. */
interface Tree {
  readonly type?: string;
  readonly value?: unknown;
  readonly quasis?: readonly { readonly value: { readonly cooked: string | null } }[];
}

/** Returns the texts in a part of a syntax tree. Parts that the program fills in are `${}`. */
function* textsIn(tree: unknown): Generator<string> {
  if (typeof tree !== 'object' || tree === null) {
    return;
  }
  const { type, value, quasis = [] } = tree as Tree;
  if (type === 'Literal' && typeof value === 'string') {
    yield value;
  }
  if (type === 'TemplateLiteral') {
    yield quasis.map((part) => part.value.cooked ?? '').join('${}');
  }
  for (const part of Object.values(tree)) {
    yield* textsIn(part);
  }
}

/** Returns the messages in the sources of a checkout, without those of tests. Parts that the program fills in are `${}`. */
export function listMessages(root: string): string[] {
  const files = SPEAKING.flatMap((wing) => globSync(`${wing}/**/*.ts`, { cwd: root })).filter(
    (file) => !file.endsWith('.test.ts'),
  );
  const isMessage = (text: string): boolean =>
    text.split(' ').filter((word) => /\w/.test(word)).length >= SENTENCE_LENGTH;
  return files
    .flatMap((file) => [...textsIn(parseSync(file, readFileSync(join(root, file), 'utf8')).program)])
    .filter(isMessage);
}
