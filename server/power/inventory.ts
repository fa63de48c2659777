/** Watches the Servers with the identity of the HTTP API, and finds them by name and address. */
import type { Logger } from 'pino';
import * as z from 'zod';
import { SERVERS } from '../../api/v1alpha1/resources.ts';
import { POWER_STATES, type Server } from '../../api/v1alpha1/server.ts';
import { canonicalAddress } from '../../base/address.ts';
import { keepFields } from '../../kube/objects.ts';
import type { KubeClient } from '../../kube/client.ts';
import { HttpError } from '../../kube/serving/httperror.ts';
import { Informer } from '../../kube/informer.ts';

/** Name of the index that finds Servers by their addresses. */
const BY_ADDRESS = 'address';

type Watcher = (server: Readonly<Server> | undefined) => void;

export class Inventory {
  readonly #informer: Informer<Server>;
  /** Functions to call when the Server of this name changes. */
  readonly #watchers = new Map<string, Set<Watcher>>();
  /** Text of the list. It is computed once for all clients, until a Server changes. */
  #list: string | undefined;
  #isFilled = false;

  constructor(client: KubeClient, logger: Logger) {
    this.#informer = new Informer(client, SERVERS, {
      logger,
      indexes: { [BY_ADDRESS]: addressesOf },
      transform: trimmed,
    });
    this.#informer.cache.onChange(({ type, object }) => {
      this.#list = undefined;
      const server = type === 'deleted' ? undefined : object;
      this.#watchers.get(object.metadata.name)?.forEach((watcher) => watcher(server));
    });
  }

  /** Starts to watch. Resolves when all Servers have been read. */
  async start(signal: AbortSignal): Promise<void> {
    this.#informer.start(signal);
    await this.#informer.synced;
    this.#isFilled = true;
  }

  /**
   * Returns the Server with this name or address. An address that two Servers claim belongs to the older one.
   *
   * @throws HttpError 503 before all Servers have been read.
   */
  find(id: string): Readonly<Server> | undefined {
    this.#requireFilled();
    const address = canonicalAddress(id);
    return address === undefined ? this.#informer.cache.get(id) : this.#ownerOf(address);
  }

  /** Returns the list of all Servers as JSON, in the order of their names. @throws HttpError 503 before all Servers have been read. */
  list(): string {
    this.#requireFilled();
    return (this.#list ??= JSON.stringify(
      this.#informer.cache
        .list()
        .toSorted(byName)
        .flatMap((server) => listedServers(server, this.#ownAddresses(server))),
    ));
  }

  /**
   * Waits until `read` returns a result for the Server of this name. `read` is called with the Server after each change, and with undefined
   * when the Server does not exist.
   *
   * @throws the reason of the signal when it aborts, and the error of `read`.
   */
  async wait<T>(
    name: string,
    read: (server: Readonly<Server> | undefined) => T | undefined,
    signal: AbortSignal,
  ): Promise<T> {
    const { promise, resolve, reject } = Promise.withResolvers<T>();
    const watcher: Watcher = (server) => {
      try {
        const result = read(server);
        if (result !== undefined) {
          resolve(result);
        }
      } catch (error) {
        reject(error);
      }
    };
    const watchers = this.#watchers.get(name) ?? new Set();
    this.#watchers.set(name, watchers.add(watcher));
    const onAbort = () => reject(signal.reason);
    signal.addEventListener('abort', onAbort);
    try {
      signal.throwIfAborted();
      watcher(this.#informer.cache.get(name));
      return await promise;
    } finally {
      signal.removeEventListener('abort', onAbort);
      watchers.delete(watcher);
      if (watchers.size === 0) {
        this.#watchers.delete(name);
      }
    }
  }

  #ownAddresses(server: Readonly<Server>): string[] {
    return addressesOf(server).filter((address) => this.#ownerOf(address) === server);
  }

  #ownerOf(address: string): Readonly<Server> | undefined {
    return this.#informer.cache.byIndex(BY_ADDRESS, address).toSorted(byAge)[0];
  }

  #requireFilled(): void {
    if (!this.#isFilled) {
      throw new HttpError(503, 'The power API is starting and has not read all Servers yet. Try again later');
    }
  }
}

function addressesOf({ spec }: Readonly<Server>): string[] {
  return spec.addresses
    .map((address) => canonicalAddress(address))
    .filter((address) => address !== undefined);
}

function byAge(a: Readonly<Server>, b: Readonly<Server>): number {
  const [one = '', other = ''] = [a, b].map(({ metadata }) => metadata.creationTimestamp ?? '');
  return one === other ? byName(a, b) : one < other ? -1 : 1;
}

function byName(a: Readonly<Server>, b: Readonly<Server>): number {
  return a.metadata.name < b.metadata.name ? -1 : 1;
}

/** Removes what no answer shows. The conditions alone are longer than the rest. */
function trimmed({ status = {}, ...server }: Server): Server {
  return { ...server, status: keepFields(status, ['power', 'request', 'lastAction']) };
}

const line = (description: string) => z.string().nullable().meta({ description });
const date = (description: string) => z.iso.datetime({ offset: true }).nullable().meta({ description });

const name = {
  id: z.string().meta({ description: 'Name of the Server object. It never changes.' }),
  name: z.string().meta({ description: 'Name for people.' }),
};
const facts = {
  type: line('Type of the server.'),
  location: line('Location of the server.'),
  status: line('Administrative status of the server. The power of the server does not change it.'),
  creation_date: date('Time from which the server is available.'),
  cancel_date: date('Time when the server was or will be given back.'),
};

/** One record of the list. A server with several addresses has one for each of them. */
export const listedServerSchema = z.object({
  ...name,
  ip: z.string().meta({ description: 'An IP address of the server.' }),
  ...facts,
});
export const serverRecordSchema = z.object({
  ...name,
  power: z.enum(POWER_STATES).meta({
    description:
      'Power of the server. Rebooting lasts until the server is on again. Error: the power cannot be read.',
  }),
  ...facts,
});

type ListedServer = z.infer<typeof listedServerSchema>;
type ServerRecord = z.infer<typeof serverRecordSchema>;

/** Returns the records of a Server in the list, one for each address. */
function listedServers(server: Readonly<Server>, addresses: readonly string[]): ListedServer[] {
  return addresses.map((ip) => ({ ...nameOf(server), ip, ...factsOf(server) }));
}

/** Returns the record of a Server. Its power is Error as long as Berth has not read it. */
export function serverRecord(server: Readonly<Server>): ServerRecord {
  return { ...nameOf(server), power: server.status?.power ?? 'Error', ...factsOf(server) };
}

function nameOf({ metadata, spec }: Readonly<Server>): Pick<ServerRecord, 'id' | 'name'> {
  return { id: metadata.name, name: spec.displayName ?? metadata.name };
}

function factsOf({ spec }: Readonly<Server>): Omit<ServerRecord, 'id' | 'name' | 'power'> {
  const { type = null, location = null, status = null, creationDate = null, cancelDate = null } = spec;
  return { type, location, status, creation_date: creationDate, cancel_date: cancelDate };
}
