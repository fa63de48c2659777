/** A real aarch64 guest, which is emulated if the host has another architecture. */
import { afterAll, beforeAll, expect, it } from 'vitest';
import { freePort } from '../../../hack/cluster/ports.ts';
import { waitFor } from '../../../hack/wait.ts';
import {
  expectDifferent,
  expectEqual,
  expectRightClock,
  IDENTITY_SCRIPT,
  LARGER_SYSTEM,
  OWN_PARTS,
  readIdentity,
  SHARED_PARTS,
} from '../../worlds/guestidentity.ts';
import {
  BOOT_DEADLINE_MILLISECONDS,
  folderOf,
  guestBase,
  type Host,
  IGNITION,
  makeHost,
  page,
  planFor,
  seedFor,
  tell,
} from '../../worlds/qemuguest.ts';
import { inGuest, namedPlan, saveWithMemory, type WarmImage } from '../../worlds/warmimage.ts';

let host: Host;
let image: WarmImage;

beforeAll(async () => {
  host = await makeHost();
});
afterAll(async () => await host.end());

it('an arm64 guest boots from UEFI, resumes after a suspend, and stops in order', {
  timeout: 300_000,
}, async () => {
  const base = await guestBase('arm64');
  const port = await freePort();
  const plan = planFor('arm64', port);
  const folder = folderOf(host, '0b7e5c1a-9d7f-4a57-8d3b-5f1f6f0c0004');
  await host.driver.create(folder, plan, base);
  await host.driver.start(folder, { ...plan, seed: await seedFor(folder, plan) });
  const before = await page(port);
  expect(before).toMatchObject({ architecture: 'aarch64', boots: '1' });
  expect([await tell(port, 'seed=user-data'), await tell(port, 'ignition')]).toEqual([IGNITION, IGNITION]);
  // The resumed machine has the seed of its start, although its plan has none.
  await host.driver.suspend(folder);
  await host.driver.resume(folder, plan);
  expect(await page(port)).toMatchObject({ boot_id: before['boot_id'] });
  expect(await tell(port, 'seed=user-data')).toBe(IGNITION);
  expect(await tell(port, 'agent=0')).toBe('listening\n');
  expect(await inGuest(host.driver, folder, LARGER_SYSTEM)).toBe('');
  image = await saveWithMemory(host, folder, 'image');
  expect(await page(port)).toMatchObject({ boot_id: before['boot_id'] });
  // Without its guest agent, the guest is stopped by its power button.
  await inGuest(host.driver, folder, '(sleep 0.2; killall qemu-ga) >/dev/null 2>&1 &');
  const signal = AbortSignal.timeout(BOOT_DEADLINE_MILLISECONDS);
  const isGone = async () => (await host.driver.askGuest(folder, { facts: false, signal })).kind === 'silent';
  await waitFor('the guest agent to end', isGone);
  await host.driver.stop(folder, { graceMilliseconds: 60_000 });
  expect(await host.driver.inspect(folder)).toEqual({ kind: 'stopped' });
  // The log writer may store the last output after the hypervisor has ended.
  await waitFor('the console to tell of the power button', async () => {
    let text = '';
    for await (const piece of host.driver.console(folder).read({})) {
      text += piece;
    }
    return text.includes('power button');
  });
});

it('arm64 guests from the memory of an image go on after its boot, and are computers of their own', {
  timeout: 300_000,
}, async () => {
  const guests = await Promise.all(
    [1, 2].map(async (number) => {
      const port = await freePort();
      const plan = namedPlan(planFor('arm64', port), `arm-${number}`, `52:54:00:00:01:0${number}`);
      const folder = folderOf(host, `0b7e5c1a-9d7f-4a57-8d3b-5f1f6f0c010${number}`);
      await host.driver.create(folder, plan, image);
      await host.driver.startFromMemory(folder, { ...plan, seed: await seedFor(folder, plan) }, image.memory);
      expect(await page(port)).toMatchObject({ architecture: 'aarch64', boots: '1' });
      const run = async (script: string) => await inGuest(host.driver, folder, script);
      await expectRightClock(run);
      return readIdentity(await run(IDENTITY_SCRIPT));
    }),
  );
  expect(guests).toMatchObject([
    { hostName: 'arm-1', left: '' },
    { hostName: 'arm-2', left: '' },
  ]);
  expectDifferent(guests, OWN_PARTS);
  expectEqual(guests, [...SHARED_PARTS, 'mac', 'address']);
});
