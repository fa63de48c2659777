/** Consoles of machines: their logs and readers, also while the agent is killed or replaced by one of another version. */
import { type ChildProcessByStdio, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { open, readFile, readlink, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { Readable, Writable } from 'node:stream';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { identify } from '../../../agent/processes/process.ts';
import type { BaseImage } from '../../../agent/disks/disk.ts';
import { makePrinter, printedLine } from '../../fixtures/printer.ts';
import { waitFor } from '../../../hack/wait.ts';
import { BOOT_DEADLINE_MILLISECONDS, terminate, TestMachine } from '../../worlds/qemuguest.ts';

const TEST_MILLISECONDS = 3 * BOOT_DEADLINE_MILLISECONDS;
/** An emulated guest prints for some seconds, and on a busy machine for much longer. */
const PRINTS = { deadlineMilliseconds: BOOT_DEADLINE_MILLISECONDS, intervalMilliseconds: 250 };
const LINES = 100;
const PRINTED = printed(LINES);
/** Lines with more bytes in all than the agent keeps for one reader of a console. */
const MANY_LINES = 40_000;
/** Program that prints a console until it is killed. It connects when it gets input. */
const READER = fileURLToPath(new URL('../../fixtures/consolereader.ts', import.meta.url));

function printed(lines: number): string {
  return `${Array.from({ length: lines }, (_, number) => printedLine(number)).join('\n')}\nthe end\n`;
}

/** Makes a machine whose guest will print so many lines. */
async function printer(lines: number): Promise<TestMachine> {
  const machine = await TestMachine.make();
  const path = join(machine.host.directory, 'printer.img');
  await makePrinter(path, { pieces: lines, what: 'lines', end: 'halt' });
  const base: BaseImage = { path, digest: 'sha256:unused', format: 'raw', virtualSizeBytes: 4 * 1024 ** 2 };
  await machine.create(base);
  return machine;
}

async function untilConsole(machine: TestMachine, wanted: string): Promise<void> {
  const showsAll = async (): Promise<boolean> => {
    let text = '';
    for await (const piece of machine.driver.console(machine.folder).read({})) {
      text += piece;
    }
    if (text !== wanted) {
      throw new Error(`${text.length} of ${wanted.length} characters`);
    }
    return true;
  };
  await waitFor('the console to show all', showsAll, PRINTS);
}

describe('a machine that an agent without log writers started', { timeout: TEST_MILLISECONDS }, () => {
  let machine: TestMachine;

  beforeAll(async () => {
    machine = await printer(LINES);
    await machine.start();
    await startAsBefore();
  }, TEST_MILLISECONDS);

  afterAll(async () => await machine?.host.end());

  const at = (name: string): string => join(machine.folder.path, name);

  /** Replaces the machine's process by one like those of an earlier agent: QEMU itself appends to one file for each log. */
  async function startAsBefore(): Promise<void> {
    const before = await machine.pid();
    const program = await readlink(`/proc/${before}/exe`);
    const command = (await readFile(`/proc/${before}/cmdline`, 'utf8')).split('\0').slice(1, -1);
    const state = await readFile(at('state.json'), 'utf8');
    await machine.stop(0);
    await machine.driver.close();
    const former = command.map((text) =>
      text.startsWith('stdio,id=serial') ? 'file,id=serial,path=serial.log,append=on' : text,
    );
    for (const name of ['serial.in', 'console', 'serial.0.log', 'hypervisor.0.log']) {
      await rm(at(name), { recursive: true, force: true });
    }
    const log = await open(at('hypervisor.log'), 'a', 0o600);
    const child = spawn(program, former, {
      cwd: machine.folder.path,
      detached: true,
      stdio: ['ignore', log.fd, log.fd],
    });
    child.unref();
    await log.close();
    const process = await identify(child.pid ?? 0);
    await writeFile(at('state.json'), JSON.stringify({ ...(JSON.parse(state) as object), process }));
    await machine.host.restartAgent();
  }

  it('keeps its console, reports its last words, and has a log writer from its next start on', async () => {
    await untilConsole(machine, PRINTED);
    expect(existsSync(at('serial.0.log'))).toBe(false);
    await expect(machine.driver.connectConsole(machine.folder, { input: false })).rejects.toThrow(
      'Restart the machine',
    );
    await terminate(await machine.pid());
    expect(await machine.state()).toMatchObject({
      kind: 'exited',
      message: expect.stringContaining('terminating on signal 15') as string,
    });
    await machine.start();
    await untilConsole(machine, `${PRINTED}${PRINTED}`);
    expect(existsSync(at('serial.0.log'))).toBe(true);
    for (const name of ['serial.log', 'hypervisor.log']) {
      expect(existsSync(at(name))).toBe(false);
    }
  });

  it('resumes from its suspended memory with a console for input', async () => {
    await startAsBefore();
    await untilConsole(machine, PRINTED);
    await machine.driver.suspend(machine.folder);
    await machine.driver.resume(machine.folder, machine.plan);
    expect(await machine.state()).toMatchObject({ kind: 'running', guestStarted: true });
    const console = await machine.driver.connectConsole(machine.folder, { input: true });
    console.destroy();
  });
});

describe('the readers of a console', { timeout: TEST_MILLISECONDS }, () => {
  let machine: TestMachine;
  let agent: ChildProcessByStdio<Writable, Readable, null>;

  beforeAll(async () => {
    machine = await printer(MANY_LINES);
    agent = spawn(process.execPath, [READER, machine.folder.path], { stdio: ['pipe', 'pipe', 'inherit'] });
    await once(agent.stdout, 'data');
    // The guest prints only for some seconds, in which both readers must connect.
    await machine.start();
  }, TEST_MILLISECONDS);

  afterAll(async () => {
    agent?.kill('SIGKILL');
    await machine?.host.end();
  });

  it('neither stop the guest nor change its log, also if they never read or their agent is killed', async () => {
    const lazy = await machine.driver.connectConsole(machine.folder, { input: true });
    const failed = once(lazy, 'error');
    agent.stdin.write('connect\n');
    await once(agent.stdout, 'data');
    agent.kill('SIGSTOP');
    expect(((await failed)[0] as Error).message).toContain('not read');
    const ended = once(agent, 'exit');
    agent.kill('SIGKILL');
    await ended;
    await untilConsole(machine, printed(MANY_LINES));
  });
});
