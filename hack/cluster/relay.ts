/**
 * Joins loopback TCP ports of two network namespaces. Sockets in the file system belong to no namespace: a process on
 * either side passes connections on through one, and neither namespace needs a way to the other.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { type End, Link } from './link.ts';

export interface RelayOptions {
  /** Name of the other namespace (`ip netns`). */
  namespace: string;
  /** `in`: processes of the other namespace reach a port of this one. `out`: the other way round. */
  direction: 'in' | 'out';
  /** In this namespace. */
  port: number;
  /** In the other one; the same when absent. */
  portThere?: number;
  /** Of that port, for direction `in`; loopback when absent. */
  addressThere?: string;
  /** Holds the socket; short, since a socket's path has 107 characters at most. */
  directory: string;
}

export class Relay {
  readonly #link: Link;
  readonly #process: ChildProcess;

  private constructor(link: Link, process: ChildProcess) {
    this.#link = link;
    this.#process = process;
  }

  static async open(options: RelayOptions): Promise<Relay> {
    const { namespace, port, portThere = port, addressThere, direction, directory } = options;
    const path = join(directory, `${direction}-${port}.sock`);
    const [from, to] = direction === 'in' ? [portThere, path] : [path, portThere];
    const script = new URL(import.meta.url).pathname;
    const ends = [String(from), String(to), ...(direction === 'in' && addressThere ? [addressThere] : [])];
    const inside = [`--net=/run/netns/${namespace}`, process.execPath, script, ...ends];
    const child = spawn('nsenter', inside, { stdio: ['ignore', 'inherit', 'inherit', 'ipc'] });
    const ready = once(child, 'message');
    const ended = once(child, 'exit').then(() => Promise.reject(new Error(`no relay in ${namespace}`)));
    await Promise.race([ready, ended]);
    ended.catch(() => undefined);
    return new Relay(await (direction === 'in' ? Link.open(path, port) : Link.open(port, path)), child);
  }

  async close(): Promise<void> {
    const ended = once(this.#process, 'exit');
    if (this.#process.exitCode === null && this.#process.signalCode === null) {
      this.#process.kill('SIGKILL');
      await ended;
    }
    this.#link.close();
  }
}

function parseEnd(text: string | undefined): End {
  if (text === undefined) {
    throw new Error('usage: relay FROM TO [ADDRESS]');
  }
  return /^\d+$/.test(text) ? Number(text) : text;
}

if (import.meta.main) {
  await Link.open(parseEnd(process.argv[2]), parseEnd(process.argv[3]), process.argv[4]);
  process.send?.('ready');
  process.once('disconnect', () => process.exit());
}
