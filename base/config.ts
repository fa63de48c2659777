/** Configuration files: YAML, checked as a whole at start, so that a person sees every mistake at once. */
import { readFileSync } from 'node:fs';
import { parse, YAMLParseError } from 'yaml';
import type * as z from 'zod';
import { codeOf } from './errors.ts';

/** All that is wrong with a configuration, one `path: mistake` per entry. */
export class ConfigError extends Error {
  override readonly name = 'ConfigError';
  readonly mistakes: readonly string[];

  /** `file`: where the mistakes are, for people. */
  constructor(file: string, mistakes: readonly string[]) {
    super([`${file} is not usable:`, ...mistakes.map((mistake) => `  ${mistake}`)].join('\n'));
    this.mistakes = mistakes;
  }
}

/** The document of a file; an empty file has an empty one. @throws ConfigError for a file that is not there or not YAML. */
export function readConfig(file: string): unknown {
  try {
    return parse(readFileSync(file, 'utf8')) ?? {};
  } catch (error) {
    if (error instanceof YAMLParseError || (error instanceof Error && codeOf(error) !== undefined)) {
      throw new ConfigError(file, [error.message]);
    }
    throw error;
  }
}

/** The document with the defaults of its schema. @throws ConfigError with every mistake. */
export function checkConfig<T>(schema: z.ZodType<T>, document: unknown, file: string): T {
  const result = schema.safeParse(document);
  if (!result.success) {
    const mistakes = result.error.issues.map(
      ({ path, message }) => `${path.join('.') || '(top)'}: ${message}`,
    );
    throw new ConfigError(file, mistakes);
  }
  return result.data;
}
