/** Changes one context of a kubeconfig. Everything else in the file stays, including the comments. */
import { mkdir, readFile, realpath } from 'node:fs/promises';
import { dirname } from 'node:path';
import { type Document, isMap, isSeq, parseDocument, type YAMLMap, type YAMLSeq } from 'yaml';
import { isMissing, undefinedIf } from '../../base/errors.ts';
import { withFileLock, writeWhole } from '../../base/files.ts';
import { CommandError, EXIT } from '../errors.ts';
import { QUOTING } from '../output.ts';

/**
 * Age after which the lock of a kubeconfig counts as left behind by a killed process. A change takes only milliseconds, so a running
 * process never holds the lock that long.
 */
const STALE_MILLISECONDS = 30_000;
/** Argument of the credential plug-in. By this argument, the command recognizes its own entries in a kubeconfig. */
export const SESSION_FLAG = '--session';

/**
 * Names of the lists in a kubeconfig. Each key is the name of the field that holds the content of one entry in the list. For example, an
 * entry of `clusters` has its content in the field `cluster`.
 */
const LISTS = { cluster: 'clusters', context: 'contexts', user: 'users' } as const;
type Kind = keyof typeof LISTS;
type Fields = Readonly<Record<string, unknown>>;

export interface ContextEntries {
  readonly cluster: Fields;
  readonly user: Fields;
  /** Namespace for the context, if the context has none yet. */
  readonly namespace?: string | undefined;
}

/**
 * Returns the kubeconfig in the file. If the file does not exist, returns an empty kubeconfig.
 *
 * @throws CommandError when the file is not a kubeconfig.
 */
export async function readKubeconfig(file: string): Promise<Kubeconfig> {
  const text = (await undefinedIf(isMissing, readFile(file, 'utf8'))) ?? '';
  return new Kubeconfig(file, text);
}

/**
 * Changes the kubeconfig atomically, and returns the result of `change`. Creates missing folders. Afterwards, only the owner can read the
 * file. This function and kubectl use the same lock file, so they do not write at the same time. The exception is a path that is a link:
 * for such a path, kubectl uses a different lock file.
 *
 * @throws errors of {@link readKubeconfig} and of `change`; the signal's reason when the signal aborts.
 */
export async function changeKubeconfig<T>(
  file: string,
  signal: AbortSignal,
  change: (kubeconfig: Kubeconfig) => T,
): Promise<T> {
  await mkdir(dirname(file), { recursive: true, mode: 0o700 });
  // If the path is a link, the link stays, and its target is replaced.
  const target = (await undefinedIf(isMissing, realpath(file))) ?? file;
  const options = { staleMilliseconds: STALE_MILLISECONDS, signal };
  return await withFileLock(`${target}.lock`, options, async () => {
    const kubeconfig = await readKubeconfig(target);
    const result = change(kubeconfig);
    await writeWhole(target, kubeconfig.text());
    return result;
  });
}

export class Kubeconfig {
  readonly #file: string;
  readonly #document: Document;

  /** @throws CommandError when the text is not a kubeconfig. */
  constructor(file: string, text: string) {
    this.#file = file;
    this.#document = parseDocument(text, QUOTING);
    const [mistake] = this.#document.errors;
    if (mistake !== undefined || (this.#document.contents !== null && !isMap(this.#document.contents))) {
      const sentence = mistake === undefined ? 'it must be a map' : mistake.message.split('\n')[0];
      throw new CommandError(`The kubeconfig ${file} has a mistake: ${sentence}`, EXIT.usage);
    }
    if (this.#document.contents === null) {
      this.#document.contents = this.#document.createNode({ apiVersion: 'v1', kind: 'Config' });
    }
  }

  get currentContext(): string | undefined {
    const name = this.#document.get('current-context');
    return typeof name === 'string' && name !== '' ? name : undefined;
  }

  text(): string {
    return this.#document.toString({ lineWidth: 0 });
  }

  /** Returns the fields of an entry. The result is undefined if the entry does not exist. */
  entry(kind: Kind, name: string): Fields | undefined {
    const fields = this.#item(kind, name)?.get(kind);
    return isMap(fields) ? (fields.toJS(this.#document) as Fields) : undefined;
  }

  /**
   * Checks that the command may replace the credentials of the context. The command may replace a token, or its own credential plug-in.
   *
   * @throws CommandError for other credentials, which would be lost.
   */
  checkOwn(context: string): void {
    const { user } = this.entry('context', context) ?? {};
    const credentials = this.entry('user', String(user)) ?? {};
    const { token: _token, exec, ...others } = credentials;
    const args: unknown = (exec as Fields | undefined)?.['args'];
    const isOwn = exec === undefined || (Array.isArray(args) && args.includes(SESSION_FLAG));
    if (!isOwn || Object.keys(others).length > 0) {
      throw new CommandError(
        `The context ${JSON.stringify(context)} of ${this.#file} has other credentials, which would be lost. Name another context with --context`,
        EXIT.usage,
      );
    }
  }

  /**
   * Writes the context, its cluster and its user, and makes this context the current one. Entries of clusters and users that other contexts
   * use stay unchanged.
   *
   * @throws errors of {@link checkOwn}.
   */
  setContext(name: string, { cluster, user, namespace }: ContextEntries): void {
    this.checkOwn(name);
    const earlier = this.entry('context', name) ?? {};
    const names = {
      cluster: this.#entryName('cluster', name),
      user: this.#entryName('user', name),
    };
    this.#set('cluster', names.cluster, cluster);
    this.#set('user', names.user, user);
    this.#set('context', name, { ...(namespace !== undefined && { namespace }), ...earlier, ...names });
    this.#document.set('current-context', name);
  }

  /**
   * Removes the context, and the entries that only this context uses. Returns whether the context existed.
   *
   * @throws errors of {@link checkOwn}.
   */
  removeContext(name: string): boolean {
    this.checkOwn(name);
    const context = this.entry('context', name);
    if (context === undefined) {
      return false;
    }
    for (const kind of ['cluster', 'user'] as const) {
      const entry = String(context[kind]);
      if (!this.#isUsedByOthers(kind, entry, name)) {
        this.#remove(kind, entry);
      }
    }
    this.#remove('context', name);
    if (this.currentContext === name) {
      this.#document.delete('current-context');
    }
    return true;
  }

  /**
   * Returns the name for the context's entry in the list of clusters or users. If the context already has an entry that no other context
   * uses, returns the name of this entry. Otherwise returns a name that no entry has.
   */
  #entryName(kind: 'cluster' | 'user', context: string): string {
    const used = this.entry('context', context)?.[kind];
    if (typeof used === 'string' && !this.#isUsedByOthers(kind, used, context)) {
      return used;
    }
    for (let number = 1; ; number += 1) {
      const name = number === 1 ? context : `${context}-${number}`;
      if (this.#item(kind, name) === undefined) {
        return name;
      }
    }
  }

  #isUsedByOthers(kind: 'cluster' | 'user', entry: string, context: string): boolean {
    return this.#items('context').some((item) => {
      const name = item.get('name');
      return name !== context && this.entry('context', String(name))?.[kind] === entry;
    });
  }

  #set(kind: Kind, name: string, fields: Fields): void {
    const item = this.#item(kind, name);
    if (item === undefined) {
      this.#list(kind).add(this.#document.createNode({ name, [kind]: fields }));
    } else {
      item.set(kind, this.#document.createNode(fields));
    }
  }

  #remove(kind: Kind, name: string): void {
    const list = this.#list(kind);
    list.items = list.items.filter((item) => !isMap(item) || item.get('name') !== name);
  }

  #item(kind: Kind, name: string): YAMLMap | undefined {
    return this.#items(kind).find((item) => item.get('name') === name);
  }

  #items(kind: Kind): YAMLMap[] {
    return this.#list(kind).items.filter((item) => isMap(item));
  }

  #list(kind: Kind): YAMLSeq {
    const list = this.#document.get(LISTS[kind]);
    if (isSeq(list)) {
      return list;
    }
    const empty = this.#document.createNode([]) as YAMLSeq;
    this.#document.set(LISTS[kind], empty);
    return empty;
  }
}
