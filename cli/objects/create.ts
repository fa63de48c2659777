/** Creates objects in the name of the user, from flags or from a file. */
import { createReadStream } from 'node:fs';
import { addAbortSignal } from 'node:stream';
import type { Command } from 'commander';
import { createBy } from '../../actions/objects.ts';
import { SELF_SUBJECT_REVIEWS } from '../../kube/core.ts';
import { UNINTERRUPTED } from '../../kube/client.ts';
import type { KubeObject, Resource, Unsaved } from '../../kube/objects.ts';
import { type UserCluster, withCluster } from '../cluster.ts';
import { CommandError, EXIT } from '../errors.ts';
import { isMissing, messageOf, undefinedIf } from '../../base/errors.ts';
import type { Globals } from '../globals.ts';
import type { Terminal } from '../terminal.ts';
import { printable } from '../text.ts';
import { type NounKind, report } from './kind.ts';
import { forEachName } from './named.ts';
import { ApiError } from '../../kube/errors.ts';

/**
 * Creates the object, and returns the version that the API server stored. When `signal` aborts, the request that creates the object is not sent. If this request is already sent, the function waits
 * for its answer. Otherwise the caller could not know whether the object exists, for example to delete it.
 *
 * @throws ApiError when the API server refuses the object; the signal's reason when the signal aborts before the request is sent.
 */
export async function createNamed<T extends KubeObject>(
  { client }: Pick<UserCluster, 'client'>,
  type: Resource<T>,
  object: Unsaved<T>,
  { signal }: { readonly signal: AbortSignal },
): Promise<T> {
  const username = await readUsername({ client }, signal);
  return await createBy(client, username, type, object, { signal: UNINTERRUPTED });
}

/** Returns the name of the user, as the cluster knows it. @throws ApiError; the signal's reason when the signal aborts. */
export async function readUsername(
  { client }: Pick<UserCluster, 'client'>,
  signal: AbortSignal,
): Promise<string> {
  const { status } = await client.create(SELF_SUBJECT_REVIEWS, { metadata: {} }, { signal });
  signal.throwIfAborted();
  return status?.userInfo?.username ?? '';
}

export interface FileFlag {
  /** Path of the file, or `-` for the standard input. */
  readonly filename?: string;
}

export function addFileFlag(command: Command): Command {
  return command.option(
    '-f, --filename <file>',
    'file with the objects as YAML or JSON; - is the standard input',
  );
}

/**
 * Returns the file if the flags name one. Otherwise the result is undefined.
 *
 * @throws CommandError when the flags name a file, but the command line also contains a name or other flags.
 */
export function fileIn(name: string | undefined, { filename, ...flags }: FileFlag): string | undefined {
  if (filename === undefined) {
    return undefined;
  }
  if (name !== undefined || Object.keys(flags).length > 0) {
    throw new CommandError(
      'Use -f without a name and without other flags. The file must contain all values',
      EXIT.usage,
    );
  }
  return filename;
}

/** Longest file in bytes. The API server refuses longer requests. */
const LENGTH = 3 * 1024 * 1024;

/**
 * Creates all objects of the file at the same time. If the file has a mistake, creates no object.
 *
 * @throws CommandError for a mistake in the file; ApiError; the signal's reason when the signal aborts.
 */
export async function createFromFile<T extends KubeObject>(
  terminal: Terminal,
  globals: Globals,
  kind: NounKind<T>,
  file: string,
): Promise<void> {
  const objects = await readObjects(file, kind, terminal.signal);
  await withCluster(terminal, globals, async (cluster) => {
    const placed = objects.map((object) => placedIn(object, globals, cluster));
    const { done, rethrow } = await forEachName(
      placed,
      async (object) => await createNamed(cluster, kind.type, object, { signal: terminal.signal }),
    );
    await report(terminal, globals, { kind, objects: done, sentence: createdSentence(kind) });
    rethrow();
  });
}

/** Returns a function that takes the name of a new object. The function returns a sentence that reports the creation of the object. */
export function createdSentence({ noun }: { readonly noun: string }): (name: string) => string {
  return (name) => `Successfully created ${noun} ${name}`;
}

async function readObjects<T extends KubeObject>(
  file: string,
  { type }: NounKind<T>,
  signal: AbortSignal,
): Promise<Unsaved<T>[]> {
  const { parseAllDocuments } = await import('yaml');
  const documents = [...parseAllDocuments(await readText(file, signal))].filter(
    ({ contents }) => contents !== null,
  );
  if (documents.length === 0) {
    throw new CommandError(`${file} has no object`, EXIT.usage);
  }
  return documents.map((document, index) => {
    const [error] = document.errors;
    const object = error === undefined ? (document.toJS() as unknown) : undefined;
    const mistake = error?.message ?? mistakeIn(object, type);
    if (mistake !== undefined) {
      throw new CommandError(`${file}: object ${index + 1}: ${mistake}`, EXIT.usage);
    }
    return object as Unsaved<T>;
  });
}

/**
 * Returns the mistake in an object of a file. If the result is undefined, this function found no mistake, and the API server checks the
 * remaining fields.
 */
function mistakeIn(object: unknown, type: Resource<KubeObject>): string | undefined {
  const { apiVersion, kind, metadata } = (object ?? {}) as Partial<KubeObject>;
  if (apiVersion !== type.apiVersion || kind !== type.kind) {
    const found = printable(`${String(kind)} of ${String(apiVersion)}`);
    return `the object is ${found}, but must be ${type.kind} of ${type.apiVersion}`;
  }
  const { name, generateName, namespace = '' }: Record<string, unknown> = { ...metadata };
  return typeof (name ?? generateName) === 'string' && typeof namespace === 'string'
    ? undefined
    : 'metadata needs a name or a generateName, and metadata.namespace must be a text';
}

/** Returns the text of the file. @throws CommandError when the file cannot be read; the signal's reason when the signal aborts. */
async function readText(file: string, signal: AbortSignal): Promise<string> {
  // The user can interrupt a command whose standard input never ends, for example if the input is the user's terminal.
  const stream = addAbortSignal(signal, file === '-' ? process.stdin : createReadStream(file));
  const pieces: Buffer[] = [];
  let length = 0;
  const read = async () => {
    for await (const piece of stream) {
      pieces.push(Buffer.from(piece as Buffer));
      length += pieces.at(-1)?.length ?? 0;
      if (length > LENGTH) {
        throw new CommandError(`${file} is longer than ${LENGTH} bytes`, EXIT.usage);
      }
    }
    return Buffer.concat(pieces).toString('utf8');
  };
  try {
    const text = await undefinedIf(isMissing, read());
    if (text !== undefined) {
      return text;
    }
  } catch (error) {
    signal.throwIfAborted();
    throw error instanceof CommandError
      ? error
      : new CommandError(`${file}: ${messageOf(error)}`, EXIT.usage);
  }
  throw new CommandError(`The file ${file} does not exist`, EXIT.usage);
}

/**
 * Returns the object with its namespace. As in kubectl, the object and the flag `--namespace` must not name different namespaces.
 *
 * @throws CommandError when they name different namespaces.
 */
function placedIn<T extends KubeObject>(
  object: Unsaved<T>,
  globals: Globals,
  { namespace }: UserCluster,
): Unsaved<T> {
  const { metadata } = object;
  // As in kubectl, an empty namespace counts as absent.
  const own = metadata.namespace || namespace;
  if (globals.namespace && own !== namespace) {
    throw new CommandError(
      `The file has an object of namespace ${printable(own)}, but --namespace is ${namespace}`,
      EXIT.usage,
    );
  }
  return { ...object, metadata: { ...metadata, namespace: own } };
}

interface Refused {
  readonly field: string;
  readonly message: string;
}

/**
 * Returns the error for the user. If the API server refused fields, the message has one line for each flag with its value and the allowed
 * values. Returns other errors unchanged.
 */
export function inFlags(error: unknown, flagByField: Readonly<Record<string, string>>): unknown {
  const refused = Map.groupBy(refusedIn(error), ({ field }) => field);
  const lines = [...refused].map(([field, all]) => {
    const flag = flagByField[field.replace(/\[.*$/, '')] ?? field;
    const messages = new Set(bestOf(all).map(({ message }) => formatRefusal(message, field)));
    return printable(`${flag}: ${[...messages].join(', and ')}`);
  });
  return lines.length === 0 ? error : new CommandError(lines.join('\n'));
}

/** Field under which the API server says that it left out other checks. */
const NO_FIELD = '<nil>';

/**
 * Returns the refusals of one field that tell most. For a bound or a form, the API server often gives two: one of its schema, whose text has
 * the words "in body" and sometimes a pattern, and one of a rule with a sentence of Berth.
 */
function bestOf(refused: readonly Refused[]): readonly Refused[] {
  const rules = refused.filter(({ message }) => !message.includes(' in body '));
  return rules.length === 0 ? refused : rules;
}

/** Returns `VALUE must be …` for `Invalid value: VALUE: FIELD in body should be …`. Other texts stay as they are. */
function formatRefusal(message: string, field: string): string {
  const plain = message.replaceAll(`${field} in body `, '');
  const [, value, rule = ''] = /^Invalid value: (.*?): (.*)$/s.exec(plain) ?? [];
  if (value === undefined) {
    return plain;
  }
  const allowed = rule
    .replace(/^should be greater than or equal to /, 'must be at least ')
    .replace(/^should be less than or equal to /, 'must be at most ')
    .replace(/^should /, 'must ');
  return allowed.startsWith('must ') ? `${value} ${allowed}` : allowed;
}

function refusedIn(error: unknown): Refused[] {
  if (!(error instanceof ApiError)) {
    return [];
  }
  const { status, details } = error;
  if (status !== 422) {
    return status === 400 ? findUnknown(error.message) : [];
  }
  const { causes = [] } = (details ?? {}) as { causes?: Partial<Refused>[] };
  const all = causes.map(({ field = '', message = '' }) => ({ field, message }));
  const known = all.filter(({ field }) => field !== NO_FIELD);
  return known.length === 0 ? all : known;
}

/**
 * Returns the fields that the API server does not know. The API server names these fields only in the text of the message, and not in its
 * list of causes.
 */
function findUnknown(text: string): Refused[] {
  const message =
    'the cluster does not have this field, because its release of Berth is older than this command';
  return [...text.matchAll(/unknown field "([^"]+)"/g)].map(([, field = '']) => ({ field, message }));
}
