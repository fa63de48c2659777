/** Jobs by `berth vm run` in real guests, while their clients, the operator and the agent of the host are killed. */
import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { LEASES } from '../../kube/core.ts';
import { undefinedIf } from '../../base/errors.ts';
import { isNotFound } from '../../kube/errors.ts';
import { waitFor } from '../../hack/wait.ts';
import type { BerthCommand } from '../wires/berth.ts';
import type { StartedProgram } from '../wires/startedprogram.ts';
import type { World } from './vm.ts';

/** Life of a VM that nobody prolongs. */
const LIFE_SECONDS = 20;
/** A VM is gone so much later than the end of its life, in milliseconds: the operator notices, and the host ends the machine. */
const LATE_MILLISECONDS = 60_000;
/** Exit codes above this one mean that Berth could not run the command. */
const PLATFORM_CODE = 200;
/** The jobs have exit codes from 0 to this one. */
const LARGEST_CODE = 99;
/** Time limit until a job begins, in milliseconds: that of `berth vm run`, and the time to log in. */
const READY_MILLISECONDS = 1_200_000;
/** Beginning of the names of the VMs. */
const NAME = 'run-';
/** The host of the world. */
const HOST = 'host';
const LEASE = { namespace: 'berth-system', name: 'berth-operator' };
/** Prints the boot of the guest, which no two VMs share, and ends with the exit code. */
const SCRIPT = 'echo "begun $(cat /proc/sys/kernel/random/boot_id)"; sleep 1; exit "$1"';

const VICTIMS = ['client', 'operator', 'agent'] as const;
type Victim = (typeof VICTIMS)[number];

export interface JobsPlan {
  readonly jobs: number;
  /** Number of jobs at the same time. */
  readonly width: number;
  readonly kills: number;
}

/** How a job ended. */
export interface JobEnd {
  /** Exit code of `berth`. It is null if `berth` was killed. */
  readonly code: number | null;
  readonly expected: number;
  /** What was killed during the job, if this was for the job. */
  readonly killed: Victim | undefined;
  /** Identity of the boot of its guest. It is undefined if the job did not begin. */
  readonly boot: string | undefined;
  readonly message: string;
}

/** Returns true if a caller learns the truth: the exit code is that of the job, or one of the platform. Nobody reads that of a killed client. */
export function isTrue({ code, expected, killed }: JobEnd): boolean {
  return code === expected || (code ?? 0) > PLATFORM_CODE || (code === null && killed === 'client');
}

/** Returns what a caller learns, for a report. */
export function outcomeOf({ code, expected, boot }: JobEnd): string {
  const what = code === expected ? 'exit code of the job' : `code ${code}`;
  return boot === undefined ? `${what}, not begun` : what;
}

export class Jobs {
  readonly #world: World;
  readonly #command: BerthCommand;
  readonly #plan: JobsPlan;
  /** What is killed during a job, by the number of the job. */
  readonly #kills: ReadonlyMap<number, Victim>;
  /** Kills come one after the other: nothing is killed that has not come back. */
  #killing: Promise<unknown> = Promise.resolve();
  /** Machines that were there before the jobs. */
  #others: readonly string[] = [];

  constructor(world: World, command: BerthCommand, plan: JobsPlan) {
    this.#world = world;
    this.#command = command;
    this.#plan = plan;
    const { jobs, kills } = plan;
    this.#kills = new Map(
      Array.from({ length: kills }, (_, kill) => [
        Math.floor(((kill + 0.5) * jobs) / kills),
        VICTIMS[kill % VICTIMS.length] as Victim,
      ]),
    );
  }

  /** Runs all jobs. */
  async run(): Promise<JobEnd[]> {
    this.#others = await this.#machines();
    const numbers = Array(this.#plan.jobs).keys();
    const ends: JobEnd[] = [];
    const work = async (): Promise<void> => {
      for (const number of numbers) {
        ends.push(await this.#job(number));
      }
    };
    await Promise.all(Array.from({ length: this.#plan.width }, work));
    await this.#killing;
    return ends;
  }

  /** Resolves when no VM, no machine and no process of a job is left. @throws Error that names what is left */
  async untilNothingIsLeft(): Promise<void> {
    const deadlineMilliseconds = LIFE_SECONDS * 1_000 + LATE_MILLISECONDS;
    await waitFor('nothing of the jobs to be left', async () => await this.#findLeft(), {
      deadlineMilliseconds,
    });
  }

  async #machines(): Promise<string[]> {
    return await readdir(join(this.#world.host(HOST).dataDirectory, 'machines'));
  }

  async #findLeft(): Promise<true> {
    const { vms } = this.#world;
    const names = (await vms.list())
      .map(({ metadata }) => `VM ${metadata.name}`)
      .filter((name) => name.startsWith(`VM ${NAME}`));
    const machines = (await this.#machines())
      .filter((uid) => !this.#others.includes(uid))
      .map((uid) => `machine ${uid}`);
    const left = [...names, ...machines, ...(await this.#findProcesses())];
    if (left.length > 0) {
      throw new Error(left.join(', '));
    }
    return true;
  }

  /** Returns the processes of this computer that have the command in their arguments: the command itself, and its ssh. */
  async #findProcesses(): Promise<string[]> {
    const [, program = ''] = this.#command.expected([]);
    const pids = (await readdir('/proc')).filter((name) => /^\d+$/.test(name));
    const found = await Promise.all(
      pids.map(async (pid) => {
        const line = await readFile(`/proc/${pid}/cmdline`, 'utf8').catch(() => '');
        return line.includes(program) ? [`process ${pid}: ${line.replaceAll('\0', ' ')}`] : [];
      }),
    );
    return found.flat();
  }

  async #job(number: number): Promise<JobEnd> {
    const expected = (number * 7) % (LARGEST_CODE + 1);
    const vm = ['--image', 'guest', '--cpu', '1', '--memory', '256Mi', '--life', `${LIFE_SECONDS}s`];
    const program = this.#command.start([
      'vm',
      'run',
      ...vm,
      '--',
      'sh',
      '-c',
      SCRIPT,
      'sh',
      String(expected),
    ]);
    const ended = program.ended();
    const killed = this.#kills.get(number);
    if (killed !== undefined) {
      await this.#untilKill(number, program, ended);
      this.#killing = this.#killing.then(async () => await this.#kill(killed, program));
      await this.#killing;
    }
    const { code, stdout, stderr } = await ended;
    return { code, expected, killed, boot: /^begun (\S+)$/m.exec(stdout)?.[1], message: stderr.trim() };
  }

  /** Waits until the job has begun or, for every second kill, until the guest of a job runs. A job that ends before ends the wait. */
  async #untilKill(number: number, program: StartedProgram, ended: Promise<unknown>): Promise<void> {
    const isEarly = [...this.#kills.keys()].indexOf(number) % 2 === 1;
    const moment = isEarly
      ? waitFor('a guest that runs', async () => await this.#hasGuest(), {
          deadlineMilliseconds: READY_MILLISECONDS,
        })
      : program.prints(/^begun/m, READY_MILLISECONDS);
    await Promise.race([moment.catch(() => undefined), ended]);
  }

  async #hasGuest(): Promise<boolean> {
    return (await this.#world.vms.list()).some(
      ({ metadata, status }) => metadata.name.startsWith(NAME) && status?.phase === 'Running',
    );
  }

  async #kill(victim: Victim, client: StartedProgram): Promise<void> {
    const world = this.#world;
    switch (victim) {
      case 'client':
        client.kill();
        break;
      case 'operator':
        await world.operator.kill('SIGKILL');
        await world.operator.stopped;
        // The test is about the next operator and not about the Lease.
        await undefinedIf(isNotFound, world.cluster.client().delete(LEASES, LEASE));
        world.operator = await world.cluster.startOperator();
        break;
      case 'agent':
        await world.host(HOST).kill();
        await world.host(HOST).startAgain();
        break;
    }
  }
}
