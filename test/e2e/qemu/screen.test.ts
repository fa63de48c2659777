/** The screen of a guest with a driver for its graphics card, as the guest and as a VNC viewer see it. */
import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { inflateSync } from 'node:zlib';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { VmLaunchPlan } from '../../../agent/drivers/driver.ts';
import { waitFor } from '../../../hack/wait.ts';
import { displayFields } from '../../fixtures/display.ts';
import { screenGuest, seenScreen } from '../../fixtures/screenguest.ts';
import { Viewer } from '../../wires/rfb.ts';
import { BOOT_DEADLINE_MILLISECONDS, TestMachine } from '../../worlds/qemuguest.ts';

const DISK_BYTES = 64 * 1024 * 1024;
const BOOT = { deadlineMilliseconds: BOOT_DEADLINE_MILLISECONDS };
const OWN_USER = { uid: 1_900_000_009, gid: 1_900_000_009 };

/** Returns the size of a PNG and its pixel data, as filtered bytes. */
function readPicture(png: Buffer): { width: number; height: number; pixels: Buffer } {
  expect(png.subarray(0, 8).toString('latin1')).toBe('\u0089PNG\r\n\u001a\n');
  const data: Buffer[] = [];
  for (let at = 8; at < png.length; at += 12 + png.readUInt32BE(at)) {
    if (png.toString('latin1', at + 4, at + 8) === 'IDAT') {
      data.push(png.subarray(at + 8, at + 8 + png.readUInt32BE(at)));
    }
  }
  return {
    width: png.readUInt32BE(16),
    height: png.readUInt32BE(20),
    pixels: inflateSync(Buffer.concat(data)),
  };
}

describe('the screen of a guest', { timeout: 2 * BOOT_DEADLINE_MILLISECONDS }, () => {
  let machine: TestMachine;
  let plan: VmLaunchPlan;

  beforeAll(async () => {
    machine = await TestMachine.make({ runAs: OWN_USER });
    const path = await screenGuest();
    const vm = { ...machine.plan.guest.vm, vnc: { enabled: true }, ...displayFields(1600, 900, 144) };
    plan = { ...machine.plan, guest: { ...machine.plan.guest, vm } };
    const base = { path, digest: 'sha256:unused', format: 'qcow2', virtualSizeBytes: DISK_BYTES } as const;
    await machine.driver.create(machine.folder, plan, base);
    await machine.driver.start(machine.folder, plan);
  }, 600_000);

  afterAll(async () => await machine.host.end());

  /** Waits until the guest sees a screen that prefers this size and has these DPI. */
  const guestSees = async (preferred: string, dpi: [number, number]) =>
    await waitFor(
      `the guest to see ${preferred} at ${dpi.join('×')} DPI`,
      async () => {
        const screen = seenScreen(await readFile(join(machine.folder.path, 'serial.0.log'), 'utf8'));
        return screen?.preferred === preferred && screen.dpi.join() === dpi.join() ? screen : undefined;
      },
      BOOT,
    );
  const viewer = async () => await Viewer.open(await machine.driver.connectScreen(machine.folder));

  it('has the width, height and DPI of its VM, and a viewer sees all of it', async () => {
    expect(await guestSees('1600×900', [144, 144])).toMatchObject({ frame: '1600×900' });
    await waitFor('the agent to report the screen', async () => 'display' in (await machine.state()));
    expect(await machine.state()).toMatchObject({ display: { ready: true, reason: 'DisplaySet' } });
    const seen = await viewer();
    const { width, height, pixels } = await seen.frame();
    expect({ width, height }).toEqual({ width: 1600, height: 900 });
    expect(pixels.some((byte) => byte !== 0)).toBe(true);
    seen.close();
  });

  it('is pictured as a PNG of its size, which shows something', async () => {
    const png = await machine.driver.screenshot(machine.folder, () => true);
    const { width, height, pixels } = readPicture(png);
    expect({ width, height }).toEqual({ width: 1600, height: 900 });
    expect(new Set(pixels).size).toBeGreaterThan(1);
    expect(await readdir(machine.folder.path)).not.toContain('screen.png');
    await expect(machine.driver.screenshot(machine.folder, () => false)).rejects.toThrow('has no memory now');
    const both = [1, 2].map(async () => await machine.driver.screenshot(machine.folder, () => true));
    const outcomes = await Promise.allSettled(both);
    expect(outcomes.map(({ status }) => status).toSorted()).toEqual(['fulfilled', 'rejected']);
  });

  it('keeps its DPI when a viewer changes its size, also with a restarted agent', async () => {
    await machine.host.restartAgent();
    await waitFor('the agent to follow the screen', async () => 'display' in (await machine.state()));
    const seen = await viewer();
    await seen.frame();
    seen.resize(1280, 720);
    await guestSees('1280×720', [144, 144]);
    seen.close();
  });

  it('has its card again after it was suspended', async () => {
    await machine.driver.suspend(machine.folder);
    await machine.driver.resume(machine.folder, plan);
    await waitFor('the agent to set the DPI', async () => 'display' in (await machine.state()));
    const seen = await viewer();
    expect((await seen.frame()).height).toBeGreaterThanOrEqual(720);
    seen.close();
  });
});
