/**
 * A real guest under the driver tart. The program is the stand-in for `tart` in its QEMU mode: a small Linux guest runs in QEMU, and its image says
 * macOS, because only such guests can be suspended. Nothing here ran with the real program.
 */
import { randomUUID } from 'node:crypto';
import { existsSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { expect, test } from 'vitest';
import { run } from '../../../base/exec.ts';
import { makeDocuments, writeSeedFiles } from '../../../agent/seed/seed.ts';
import { freePort } from '../../../hack/cluster/ports.ts';
import { makeKey, sshOptions } from '../../../hack/login.ts';
import { waitFor } from '../../../hack/wait.ts';
import { unlistedCalls } from '../../support/tartcalls.ts';
import { page } from '../../worlds/qemuguest.ts';
import { makeGuestImage, TartHost, tartPlan } from '../../worlds/tarthost.ts';

const MEBIBYTE = 1024 ** 2;
/** Time limit for the boot of an emulated guest on a busy machine, and for a login into it. */
const BOOT_MILLISECONDS = 90_000;
const LOGIN_MILLISECONDS = 30_000;
const GRACE_MILLISECONDS = 60_000;
/** Processes of machines are found by the uid, so it differs from those of other tests. */
const UID = randomUUID();

test('a guest in QEMU has an address, lets a user log in by a reserved port, is suspended, goes on under the next agent, shuts down, boots again and is deleted', async () => {
  await using host = new TartHost();
  host.tart.give('qemu');
  const key = join(host.directory, 'key');
  const sshAuthorizedKeys = [await makeKey(key)];
  const plain = tartPlan(UID, 'MacOS', { sshAuthorizedKeys });
  const [sshPort, pagePort] = [await freePort(), await freePort()];
  const ports = [
    { protocol: 'TCP', hostPort: sshPort, guestPort: 22 },
    { protocol: 'TCP', hostPort: pagePort, guestPort: 80 },
  ] as const;
  const network = { ...plain.network, kind: 'user', hostAddress: '127.0.0.1', ports } as const;
  const plan = { ...plain, network, memoryBytes: 128 * MEBIBYTE };
  const folder = host.folder(UID);
  const inGuest = async (command: string): Promise<string> =>
    await waitFor(
      'a login into the guest',
      async () =>
        await run('ssh', [...sshOptions(key, sshPort), 'root@127.0.0.1', command], {
          timeoutMilliseconds: LOGIN_MILLISECONDS,
        }),
      { deadlineMilliseconds: BOOT_MILLISECONDS },
    );

  await host.driver.create(folder, plan, await makeGuestImage(join(host.directory, 'image-guest')));
  const documents = makeDocuments(plan.guest.vm, { ...plan, host: 'here', userData: undefined });
  const seeded = { ...plan, seed: await writeSeedFiles(folder.path, documents) };
  await host.driver.start(folder, seeded);
  const address = await host.driver.address(UID);
  expect(address).toMatch(/^127\.\d+\.\d+\.\d+$/);
  expect((await page(pagePort))['boots']).toBe('1');
  expect((await page(80, address))['boots']).toBe('1');
  const bootId = await inGuest('echo worked >/note; cat /proc/sys/kernel/random/boot_id');

  await host.driver.suspend(folder);
  expect(await host.driver.inspect(folder)).toEqual({ kind: 'suspended' });
  await host.restartAgent();
  await host.driver.resume(folder, seeded);
  await host.driver.address(UID);
  expect(await inGuest('cat /note /proc/sys/kernel/random/boot_id')).toBe(`worked\n${bootId}`);

  await host.driver.stop(folder, { graceMilliseconds: GRACE_MILLISECONDS });
  expect(readFileSync(join(folder.path, 'serial.0.log'), 'utf8')).toMatch(
    /guest has stopped the virtual machine\n$/,
  );
  expect(await host.driver.inspect(folder)).toEqual({ kind: 'stopped' });
  await host.driver.start(folder, seeded);
  await host.driver.address(UID);
  expect((await page(pagePort))['boots']).toBe('2');

  await host.driver.delete(folder);
  expect(existsSync(dirname(host.disk(UID)))).toBe(false);
  expect(unlistedCalls(host.tart.calls)).toEqual([]);
  expect(host.tart.faults).toEqual([]);
});
