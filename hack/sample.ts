/**
 * `make sample SEED=7 OF=code COUNT=10` draws random lines of the product for a reader who has not seen them. A reader who knows only the
 * tree of folders should know where a line of code belongs. A comment or message should be clear at the first reading. The places are
 * printed after the samples, so that they can be hidden at first.
 */
import { createHash } from 'node:crypto';
import { globSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { runCommand } from './command.ts';

const ROOT = join(import.meta.dirname, '..');
const PRODUCT = '{base,api,kube,operator,agent,server,cli}/**/*.ts';
/** Smallest number of characters of a drawn line of code. A reader could not tell where a shorter line belongs. */
const LINE_CHARACTERS = 30;
/** Lines of code shown before and after the drawn line. */
const CONTEXT_LINES = 4;
/** Fewest words of a message. A literal with fewer words is a name or a key. */
const MESSAGE_WORDS = 5;

export interface Sample {
  /** Path of the file from the root of the project, with the line's number. */
  readonly place: string;
  readonly text: string;
}

/** Kind of sample: a line of code with its context, a whole comment, or a literal that is a sentence. */
export type Sampled = 'code' | 'comments' | 'messages';

const COLLECTORS: Readonly<Record<Sampled, (file: string, lines: readonly string[]) => Sample[]>> = {
  code: codeOf,
  comments: commentsOf,
  messages: messagesOf,
};

/** Draws samples, each with the same probability. The same seed and files give the same samples. */
export function draw(samples: readonly Sample[], seed: string, count: number): Sample[] {
  const rank = ({ place }: Sample): string => createHash('sha256').update(`${seed} ${place}`).digest('hex');
  return samples
    .map((sample) => ({ sample, rank: rank(sample) }))
    .toSorted((one, other) => (one.rank < other.rank ? -1 : 1))
    .slice(0, count)
    .map(({ sample }) => sample);
}

/** Returns all samples of one file of TypeScript. */
export function collect(of: Sampled, file: string, text: string): Sample[] {
  return COLLECTORS[of](file, text.split('\n'));
}

function codeOf(file: string, lines: readonly string[]): Sample[] {
  return lines.flatMap((line, index) =>
    isCode(line) && line.trim().length >= LINE_CHARACTERS && !isImport(lines, index)
      ? [
          {
            place: `${file}:${index + 1}`,
            text: lines.slice(Math.max(0, index - CONTEXT_LINES), index + CONTEXT_LINES + 1).join('\n'),
          },
        ]
      : [],
  );
}

function isCode(line: string): boolean {
  return !/^\s*(\/\*|\*|\/\/)/.test(line);
}

/**
 * Returns whether a line belongs to an import. Imports are at the top of a file, can have several lines, and end with the module's name.
 */
function isImport(lines: readonly string[], index: number): boolean {
  return lines.slice(index).some((line) => /from '[^']+';$/.test(line));
}

function commentsOf(file: string, lines: readonly string[]): Sample[] {
  const samples: Sample[] = [];
  lines.forEach((line, index) => {
    if (isCode(line)) {
      return;
    }
    const continues = index > 0 && !isCode(lines[index - 1] ?? '') && !line.includes('/*');
    const last = samples.at(-1);
    if (continues && last !== undefined) {
      samples[samples.length - 1] = { ...last, text: `${last.text}\n${line.trim()}` };
    } else {
      samples.push({ place: `${file}:${index + 1}`, text: line.trim() });
    }
  });
  return samples.filter(({ text }) => text.length >= LINE_CHARACTERS);
}

function messagesOf(file: string, lines: readonly string[]): Sample[] {
  return lines.flatMap((line, index) =>
    isCode(line)
      ? [...line.matchAll(/'(?:[^'\\]|\\.)*'|`(?:[^`\\]|\\.)*`/g)]
          .map(([literal]) => literal)
          .filter((literal) => literal.split(' ').length >= MESSAGE_WORDS)
          .map((text) => ({ place: `${file}:${index + 1}`, text }))
      : [],
  );
}

function isSampled(of: string): of is Sampled {
  return Object.hasOwn(COLLECTORS, of);
}

async function main(): Promise<void> {
  const { values } = parseArgs({
    options: {
      seed: { type: 'string' },
      of: { type: 'string', default: 'code' },
      count: { type: 'string', default: '10' },
    },
  });
  const { seed, of } = values;
  const count = Number(values.count);
  if (seed === undefined || !isSampled(of) || !Number.isInteger(count) || count < 1) {
    throw new Error('Use: make sample SEED=any-text OF=code|comments|messages COUNT=10');
  }
  const files = globSync(PRODUCT, { cwd: ROOT })
    .filter((file) => !file.endsWith('.test.ts'))
    .toSorted();
  const texts = await Promise.all(files.map(async (file) => await readFile(join(ROOT, file), 'utf8')));
  const all = files.flatMap((file, index) => collect(of, file, texts[index] ?? ''));
  const drawn = draw(all, seed, count);
  for (const [index, { text }] of drawn.entries()) {
    process.stdout.write(`--- ${index + 1}\n${text}\n`);
  }
  process.stdout.write(`\nPlaces, of ${all.length}:\n`);
  for (const [index, { place }] of drawn.entries()) {
    process.stdout.write(`${index + 1} ${place}\n`);
  }
}

if (import.meta.main) {
  await runCommand(main);
}
