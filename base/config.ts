/**
 * Reads configuration files in YAML, and has the settings that several programs share. The whole file is checked at start, so that a person
 * sees all mistakes together.
 */
import { readFileSync } from 'node:fs';
import { parse, YAMLParseError } from 'yaml';
import * as z from 'zod';
import { codeOf } from './errors.ts';

/** Error with all mistakes in a configuration. Each entry has the form `path: mistake`. */
export class ConfigError extends Error {
  override readonly name = 'ConfigError';
  readonly mistakes: readonly string[];

  /** The message contains `file`, the name of the configuration file. */
  constructor(file: string, mistakes: readonly string[]) {
    super([`${file} is not usable:`, ...mistakes.map((mistake) => `  ${mistake}`)].join('\n'));
    this.mistakes = mistakes;
  }
}

/** Reads and parses a file. An empty file yields an empty document. @throws ConfigError when the file cannot be read or is not YAML. */
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

/** Checks a document and returns it with the defaults of its schema. @throws ConfigError with every mistake in the document. */
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

/** Paths of two PEM files: a certificate and its private key. Set both paths or none. */
export interface CertificateFiles {
  certificateFile?: string | undefined;
  keyFile?: string | undefined;
}

/**
 * Returns the settings for the certificate of a server as fields for a zod schema. {@link areFilesTogether} is a check that the caller must
 * also add to the schema. The parameter `dnsNames` is the default value of the field `dnsNames`.
 */
export function certificateFields(dnsNames: string[]) {
  return {
    /**
     * Paths of PEM files. The server reads the files again when they change. If no paths are set, the server creates its own certificate
     * and replaces it before it expires.
     */
    certificateFile: z.string().optional(),
    keyFile: z.string().optional(),
    /** DNS names in the certificate that the server creates. They have no effect if `certificateFile` and `keyFile` are set. */
    dnsNames: z.array(z.string()).default(dnsNames),
  };
}

export function areFilesTogether({ certificateFile, keyFile }: CertificateFiles): boolean {
  return (certificateFile === undefined) === (keyFile === undefined);
}

export const FILES_TOGETHER = { error: 'certificateFile and keyFile must be set together' };

/** Levels of a program's log, without the one that writes every request. */
export const logLevelSchema = z.enum(['debug', 'info', 'warn', 'error']);

/** Settings of a program of which one replica leads, as fields for a zod schema. */
export const LED_PROGRAM_FIELDS = {
  health: z.strictObject({ address: z.string().default(':8081') }).prefault({}),
  leaderElection: z
    .strictObject({
      leaseDurationSeconds: z.number().min(3).default(9),
      renewDeadlineSeconds: z.number().min(2).default(6),
      retryPeriodSeconds: z.number().min(0.2).default(1),
    })
    .prefault({}),
  logLevel: logLevelSchema.default('info'),
};
