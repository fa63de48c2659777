/**
 * Checks the language of the docs and of the chart's texts for people (docs/develop/style.md).
 *
 *   prose.ts            checks all texts
 *   prose.ts FILE…      checks these Markdown pages
 *
 * It prints one line for each breach, and exits with 1 if there is a breach. Texts in the code are checked on the generated pages in
 * docs/reference.
 */
import { globSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { parse } from 'yaml';
import { runCommand } from './command.ts';
import { faultsIn } from './prose/rules.ts';

const ROOT = join(import.meta.dirname, '..');
const PAGES = ['*.md', 'docs/**/*.md', 'charts/berth/*.md'];
const RULES = 'charts/berth/files/monitoring/rules.yaml';
const NOTES = 'charts/berth/templates/NOTES.txt';

interface AlertRules {
  groups: { rules: { annotations: Record<string, string> }[] }[];
}

const read = (file: string): string => readFileSync(join(ROOT, file), 'utf8');

/** Returns the text of each checked file by its path, as Markdown. */
function texts(files: readonly string[]): Map<string, string> {
  if (files.length > 0) {
    return new Map(files.map((file) => [file, readFileSync(file, 'utf8')]));
  }
  const pages = globSync(PAGES, { cwd: ROOT }).toSorted();
  return new Map([
    ...pages.map((file) => [file, read(file)] as const),
    [RULES, alertTexts()],
    [NOTES, notes()],
  ]);
}

/** Returns the texts of alerts for people. Line numbers of the result differ from those of the file. */
function alertTexts(): string {
  const { groups } = parse(read(RULES)) as AlertRules;
  const annotations = groups.flatMap(({ rules }) => rules).map((rule) => rule.annotations);
  return annotations
    .flatMap(({ summary = '', description = '' }) => [summary, '', description, ''])
    .join('\n');
}

/** Returns the notes without the template's actions and without indented commands. */
function notes(): string {
  const text = read(NOTES).replaceAll(/\{\{[^]*?\}\}/g, (action) => action.replaceAll(/[^\n]/g, ''));
  return text.replaceAll(/^ {2}.*$/gm, '');
}

async function main(): Promise<number> {
  const { positionals } = parseArgs({ allowPositionals: true });
  let count = 0;
  for (const [file, text] of texts(positionals)) {
    for (const { line, advice, sentence } of faultsIn(text)) {
      console.error(`${file}:${line}: ${advice}: ${sentence}`);
      count += 1;
    }
  }
  return count === 0 ? 0 : 1;
}

await runCommand(main);
