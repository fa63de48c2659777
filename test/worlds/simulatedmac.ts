/** An Apple host without processes: the stand-in for the program `tart`, whose machines are objects. */
import { appendFileSync } from 'node:fs';
import { join } from 'node:path';
import { ProgramError } from '../../base/exec.ts';
import type { ProcessIdentity } from '../../agent/processes/process.ts';
import type { Answer } from '../standins/tart/program/answers.ts';
import { type RunningMachine, type Signal, TartStandIn } from '../standins/tart/program/standin.ts';

interface Process {
  machine: RunningMachine;
  /** Folder of the machine, in which its log is. */
  folder: string;
  exited: PromiseWithResolvers<{ code: number; signal: null }>;
}

export class SimulatedMac {
  readonly tart: TartStandIn;
  readonly processes = new Map<number, Process>();
  #lastPid = 0;

  constructor(home: string) {
    this.tart = new TartStandIn(home, {
      isAlive: (pid) => this.processes.has(pid),
      send: (pid, signal) => this.send(pid, signal),
      find: (name) => `/stand-in/${name}`,
    });
  }

  /** Names of all machines that run. */
  get running(): string[] {
    return [...this.processes.values()].map(({ machine }) => machine.name);
  }

  identify(pid: number): ProcessIdentity {
    return { pid, startTime: String(pid), bootId: 'boot' };
  }

  find(name: string): ProcessIdentity | undefined {
    const [pid] = [...this.processes].find(([, { machine }]) => machine.name === name) ?? [];
    return pid === undefined ? undefined : this.identify(pid);
  }

  /** Calls the program as a child. @throws ProgramError when it fails. */
  run(parameters: readonly string[]): string {
    const { code, stdout, stderr } = this.tart.call(parameters);
    if (code !== 0) {
      throw new ProgramError(`tart: ${stderr}`, { exitCode: code, lastOutput: stderr });
    }
    return stdout;
  }

  /** Starts the process of a machine. */
  launch(
    folder: string,
    command: readonly string[],
  ): { identity: ProcessIdentity; exited: Process['exited']['promise'] } {
    this.#lastPid += 1;
    const pid = this.#lastPid;
    const exited = Promise.withResolvers<{ code: number; signal: null }>();
    const begun = this.tart.begin(command.slice(command.indexOf('run')), pid);
    if ('code' in begun) {
      print(folder, begun);
      exited.resolve({ code: begun.code, signal: null });
    } else {
      this.processes.set(pid, { machine: begun, folder, exited });
      print(folder, { stdout: begun.greeting, stderr: '' });
    }
    return { identity: this.identify(pid), exited: exited.promise };
  }

  send(pid: number, signal: Signal): void {
    const answer = this.processes.get(pid)?.machine.onSignal(signal);
    if (answer !== undefined) {
      this.end(pid, answer);
    }
  }

  /** Ends a process, by default as SIGKILL does. */
  end(pid: number, answer: Answer = { code: 137, stdout: '', stderr: '' }): void {
    const found = this.processes.get(pid);
    if (found !== undefined) {
      print(found.folder, answer);
      this.processes.delete(pid);
      found.exited.resolve({ code: answer.code, signal: null });
    }
  }
}

function print(folder: string, { stdout, stderr }: Pick<Answer, 'stdout' | 'stderr'>): void {
  appendFileSync(join(folder, 'serial.0.log'), `${stdout}${stderr}`);
}
