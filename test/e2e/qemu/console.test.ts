/** Machines that run while their agent is replaced by one of another version. */
import { spawn } from 'node:child_process';
import { existsSync } from 'node:fs';
import { open, readFile, readlink, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { identify } from '../../../agent/processes/process.ts';
import type { BaseImage } from '../../../agent/disks/disk.ts';
import { makePrinter, printedLine } from '../../fixtures/printer.ts';
import { waitFor } from '../../../hack/wait.ts';
import { terminate, TestMachine } from '../../worlds/qemuguest.ts';

const TEST_MILLISECONDS = 120_000;
const LINES = 100;
const PRINTED = `${Array.from({ length: LINES }, (_, number) => printedLine(number)).join('\n')}\nthe end\n`;

describe('a machine that an agent without log writers started', { timeout: TEST_MILLISECONDS }, () => {
  let machine: TestMachine;

  beforeAll(async () => {
    machine = await TestMachine.make();
    const path = join(machine.host.directory, 'printer.img');
    await makePrinter(path, { pieces: LINES, what: 'lines', end: 'halt' });
    const base: BaseImage = { path, digest: 'sha256:unused', format: 'raw', virtualSizeBytes: 4 * 1024 ** 2 };
    await machine.create(base);
    await machine.start();
    await startAsBefore();
  }, TEST_MILLISECONDS);

  afterAll(async () => await machine?.host.end());

  const at = (name: string): string => join(machine.folder.path, name);

  /** Replaces the machine's process by one as an earlier agent made it: QEMU itself appends to one file for each log. */
  async function startAsBefore(): Promise<void> {
    const before = await machine.pid();
    const program = await readlink(`/proc/${before}/exe`);
    const command = (await readFile(`/proc/${before}/cmdline`, 'utf8')).split('\0').slice(1, -1);
    const state = await readFile(at('state.json'), 'utf8');
    await machine.stop(0);
    await machine.driver.close();
    const added = command.indexOf('-add-fd');
    const former = command
      .toSpliced(added, 2)
      .map((text) => text.replace('path=/dev/fdset/1', 'path=serial.log'));
    for (const name of ['console', 'serial.0.log', 'hypervisor.0.log']) {
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

  async function untilConsole(wanted: string): Promise<void> {
    await waitFor('the console to show all', async () => {
      let text = '';
      for await (const piece of machine.driver.console(machine.folder).read({})) {
        text += piece;
      }
      if (text !== wanted) {
        throw new Error(`${text.length} of ${wanted.length} characters`);
      }
      return true;
    });
  }

  it('keeps its console, tells its last words, and has a log writer from its next start on', async () => {
    await untilConsole(PRINTED);
    expect(existsSync(at('serial.0.log'))).toBe(false);
    await terminate(await machine.pid());
    expect(await machine.state()).toMatchObject({
      kind: 'exited',
      message: expect.stringContaining('terminating on signal 15') as string,
    });
    await machine.start();
    await untilConsole(`${PRINTED}${PRINTED}`);
    expect(existsSync(at('serial.0.log'))).toBe(true);
    for (const name of ['serial.log', 'hypervisor.log']) {
      expect(existsSync(at(name))).toBe(false);
    }
  });
});
