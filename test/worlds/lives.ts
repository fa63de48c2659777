/** Lives of agents in one process. An agent dies between two of its steps, and none of its later calls has an effect. */
import { AsyncLocalStorage } from 'node:async_hooks';
import type { Socket } from 'node:net';

/** Error of each call of an agent that has died. */
export class Died extends Error {}

/** Life of one agent. It ends at a step that is chosen in advance, before the step has an effect. */
export class Life {
  steps = 0;
  isOver = false;
  readonly #ended = Promise.withResolvers<void>();
  readonly #last: number;
  readonly #sockets = new Set<Socket>();

  /** `last` is the number of the step at which the agent dies. */
  constructor(last = Number.POSITIVE_INFINITY) {
    this.#last = last;
  }

  /** Counts a step of the agent. @throws Died when the agent dies here, or is dead. */
  step(): void {
    this.check();
    this.steps += 1;
    if (this.steps >= this.#last) {
      this.end();
    }
    this.check();
  }

  check(): void {
    if (this.isOver) {
      throw new Died();
    }
  }

  /** Closes the connection when the agent dies. */
  owns(socket: Socket): void {
    this.#sockets.add(socket);
  }

  /** Resolves when the agent dies. What is left of its work then only fails. */
  get ended(): Promise<void> {
    return this.#ended.promise;
  }

  end(): void {
    this.isOver = true;
    this.#ended.resolve();
    for (const socket of this.#sockets) {
      socket.destroy();
    }
  }
}

/** The agent whose code runs. Undefined in the code of a test, which never dies. */
export const lives = new AsyncLocalStorage<Life>();

/**
 * Runs `work` with the driver of an agent with this life, which can end meanwhile. Returns whether it has ended. If not, the driver is closed,
 * and the life ends now.
 */
export async function liveAs<Driver extends { close: () => Promise<void> }>(
  life: Life,
  driver: Driver,
  work: (driver: Driver) => Promise<void>,
): Promise<boolean> {
  const done = lives
    .run(life, async () => await work(driver))
    .catch((error: unknown) => {
      if (!life.isOver) {
        throw error;
      }
    });
  await Promise.race([done, life.ended]);
  const hasDied = life.isOver;
  if (!hasDied) {
    await lives.run(life, async () => await driver.close());
    life.end();
  }
  return hasDied;
}

/** Returns `work` as a step of the agent that calls it. */
export function asStep<A extends unknown[], R>(
  work: (...args: A) => R | Promise<R>,
): (...args: A) => Promise<R> {
  return async (...args) => {
    lives.getStore()?.step();
    return await work(...args);
  };
}

/** In place of `MachineCgroups`: simulated machines have no control groups. */
export class NoCgroups {
  async remove(): Promise<void> {
    await Promise.resolve();
  }

  async memoryKills(): Promise<number> {
    return await Promise.resolve(0);
  }
}

/** In place of `ConsoleStore`: simulated machines have no console. */
export class NoConsole {
  start(): void {
    /* Nothing is read. */
  }

  close(): void {
    /* Nothing is open. */
  }
}

/** Functions of `node:fs/promises` that change files, and methods of an open file that do. */
const CHANGES = new Set(['chmod', 'copyFile', 'mkdir', 'open', 'rename', 'rm', 'rmdir', 'writeFile']);
const WRITES = new Set(['appendFile', 'datasync', 'sync', 'truncate', 'write', 'writeFile', 'writev']);

type Call = (...args: unknown[]) => unknown;

/** Returns the module `node:fs/promises` with each change of a file as a step. */
export function stepping(original: object): object {
  const all = Object.entries(original).map(([name, value]) => {
    const call = value as Call;
    const opened: Call = async (...args) => stepwise((await call(...args)) as object);
    return [name, CHANGES.has(name) ? asStep(name === 'open' ? opened : call) : call];
  });
  return { ...(Object.fromEntries(all) as object), default: original };
}

/** Returns an open file whose writes are steps. */
function stepwise(file: object): object {
  const get = (target: object, key: string | symbol): unknown => {
    const value: unknown = Reflect.get(target, key, target);
    if (typeof value !== 'function') {
      return value;
    }
    const call = (value as Call).bind(target);
    return WRITES.has(String(key)) ? asStep(call) : call;
  };
  return new Proxy(file, { get });
}
