/** Consoles of machines: their logs and readers, also while the agent is killed. */
import { type ChildProcessByStdio, spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import type { Readable, Writable } from 'node:stream';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { BaseImage } from '../../../agent/disks/disk.ts';
import { makePrinter, printedLine } from '../../fixtures/printer.ts';
import { waitFor } from '../../../hack/wait.ts';
import { BOOT_DEADLINE_MILLISECONDS, TestMachine } from '../../worlds/qemuguest.ts';

const TEST_MILLISECONDS = 3 * BOOT_DEADLINE_MILLISECONDS;
/** An emulated guest prints for some seconds, and on a busy machine for much longer. */
const PRINTS = { deadlineMilliseconds: BOOT_DEADLINE_MILLISECONDS, intervalMilliseconds: 250 };
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
