/** VMs that cannot run on real hosts. Each shows the reason to its user, and leaves nothing on a host. */
import { execFile } from 'node:child_process';
import { rm, symlink, writeFile } from 'node:fs/promises';
import { once } from 'node:events';
import { createServer, type Server } from 'node:net';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, expect, test } from 'vitest';
import type { VMSpec } from '../../../api/v1alpha1/vm.ts';
import { listFolders } from '../../../base/files.ts';
import { freePort } from '../../../hack/cluster/ports.ts';
import { waitFor } from '../../../hack/wait.ts';
import { hypervisorsBelow, SET_UP_MILLISECONDS, STEP, World } from '../../worlds/vm.ts';

const TEST_MILLISECONDS = 300_000;
/**
 * As many hosts as attempts with a port. They are addresses of one machine, so a port that is in use at one address is free at the others.
 */
const HOSTS = { one: '127.0.0.1', two: '127.0.0.2', three: '127.0.0.3', four: '127.0.0.4' };
/** First bytes of a qcow2 image. */
const CLUSTER_BYTES = 65_536;

let world: World;

beforeAll(async () => {
  world = await World.start({ name: 'vm-refused', architecture: 'amd64', hosts: HOSTS });
}, SET_UP_MILLISECONDS);

afterAll(async () => {
  await world?.[Symbol.asyncDispose]();
});

async function makeDisk(...args: string[]): Promise<void> {
  await promisify(execFile)('qemu-img', ['create', '-q', '-f', 'qcow2', ...args], { cwd: world.shared });
}

interface Failure {
  reason: string;
  message: RegExp;
}

async function expectFailure(name: string, spec: Partial<VMSpec>, failure: Failure): Promise<void> {
  await world.makeVM(name, spec);
  await expectEnd(name, failure);
}

/** Checks that the VM is Failed with this reason and message. After its deletion no host has anything of it. */
async function expectEnd(name: string, { reason, message }: Failure): Promise<void> {
  const { status } = await world.vms.waitForPhase(name, 'Failed', reason, STEP);
  expect(status?.failure?.message).toMatch(message);
  await world.vms.waitForCondition(name, 'Stalled', { status: 'True', reason });
  await world.expectStory(name, new RegExp(`Warning +${reason} .*${message.source}`));
  expect(await world.kubectl('get', 'vm', name, '-o', 'wide')).toMatch(
    new RegExp(`^${name} +Failed +False +${reason} `, 'm'),
  );
  await world.kubectl('delete', 'vm', name);
  await untilNothingIsLeft();
}

/** Nothing waits for the disk of an ended machine. Its Pod is removed at once, and the host learns of that. */
async function untilNothingIsLeft(): Promise<void> {
  for (const [name, { dataDirectory }] of world.hosts) {
    await waitFor(
      `nothing to be left on host ${name}`,
      async () => {
        const processes = await hypervisorsBelow(dataDirectory);
        const folders = await listFolders(join(dataDirectory, 'machines'));
        if (processes.length + folders.length > 0) {
          throw new Error([...processes, ...folders].join());
        }
        return true;
      },
      STEP,
    );
  }
}

test(
  'a disk that only looks like qcow2: Failed, with what its header claims',
  async () => {
    const garbage = Buffer.alloc(CLUSTER_BYTES, 0xa5);
    garbage.write('QFI\xfb', 'latin1');
    garbage.writeUInt32BE(3, 4);
    await writeFile(join(world.shared, 'garbage.qcow2'), garbage);
    await world.makeImage('garbage', 'garbage.qcow2');
    const message = /The qcow2 image claims clusters of 2\^2779096485 bytes/;
    await expectFailure('garbage', { image: 'garbage' }, { reason: 'ImageInvalid', message });
  },
  TEST_MILLISECONDS,
);

test(
  'a disk that would read a file of the host: refused',
  async () => {
    await makeDisk('-F', 'raw', '-b', '/etc/hostname', 'backed.qcow2', '64M');
    await world.makeImage('backed', 'backed.qcow2');
    const message = /names a backing file \(\/etc\/hostname\)/;
    await expectFailure('backed', { image: 'backed' }, { reason: 'ImageInvalid', message });
  },
  TEST_MILLISECONDS,
);

test(
  'a file that is not there, or not below the folder of images: Failed',
  async () => {
    await symlink('/etc/hostname', join(world.shared, 'outside.qcow2'));
    for (const name of ['missing', 'outside']) {
      await world.makeImage(name, `${name}.qcow2`);
      const message = new RegExp(`${name}\\.qcow2 is not a file below a shared folder of this host`);
      await expectFailure(name, { image: name }, { reason: 'ImageNotFound', message });
    }
  },
  TEST_MILLISECONDS,
);

test(
  'an image of a registry at an address of the host itself, which the host was not told of: Failed',
  async () => {
    const message = /The address of 127\.0\.0\.1 is not allowed for images/;
    const reason = 'ImageFetchFailed';
    await expectFailure('registry', { image: '127.0.0.1:5000/guest:1' }, { reason, message });
  },
  TEST_MILLISECONDS,
);

test(
  'more memory than any host has: Pending, with the reason',
  async () => {
    await world.makeVM('vast', { memory: '4Ti' });
    const message = 'No host can take it: 4 with too little memory for it';
    const reason = 'Unschedulable';
    await world.vms.waitForCondition('vast', 'Scheduled', { status: 'False', reason, message }, STEP);
    await world.expectStory('vast', /Warning +Unschedulable .*4 with too little memory/);
    expect(await world.kubectl('get', 'vm', 'vast', '-o', 'wide')).toMatch(
      /^vast +Pending .*4 with too little memory/m,
    );
    await world.kubectl('delete', 'vm', 'vast');
  },
  TEST_MILLISECONDS,
);

test(
  'a port that another process holds: placed on another host, and the story says why',
  async () => {
    const port = await freePort();
    const server = await listen(port, HOSTS.one);
    try {
      // The other hosts are cordoned, so that the first attempt meets the process.
      await world.kubectl('cordon', 'two', 'three', 'four');
      await makeServing('moves', port);
      await world.vms.waitForVM(
        'moves',
        'the first placement to be given up',
        ({ status }) => status?.attempt === 2 && status.avoidedNodes?.[0] === 'one',
        STEP,
      );
      await world.kubectl('uncordon', 'two');
      await world.waitForCondition('Ready', 'moves');
    } finally {
      await close(server);
      await world.kubectl('uncordon', 'two', 'three', 'four');
    }
    expect((await world.vms.get('moves')).status).toMatchObject({ nodeName: 'two', attempt: 2 });
    expect((await fetch(`http://${HOSTS.two}:${port}/`)).status).toBe(200);
    const expected = `Attempt 1 on host one was given up: Port ${port}/TCP on ${HOSTS.one} is in use`;
    await world.expectStory('moves', new RegExp(`Warning +PortTaken .*${expected}`));
    await world.expectStory('moves', /Normal +Scheduled .*placed on host one \(attempt 1\)/);
    await world.expectStory('moves', /Normal +Scheduled .*placed on host two \(attempt 2\)/);
    await world.kubectl('delete', 'vm', 'moves');
    await untilNothingIsLeft();
  },
  TEST_MILLISECONDS,
);

test(
  'a port that other processes hold wherever it is tried: Failed/PortTaken',
  async () => {
    const port = await freePort();
    const servers = await Promise.all(Object.values(HOSTS).map((address) => listen(port, address)));
    try {
      const message = new RegExp(`Port ${port}/TCP on 127\\.0\\.0\\.\\d is in use on this host`);
      await expectFailure('nowhere', { ports: [`${port}:80`] }, { reason: 'PortTaken', message });
    } finally {
      await Promise.all(servers.map(close));
    }
  },
  TEST_MILLISECONDS,
);

async function makeServing(name: string, port: number): Promise<void> {
  await world.makeVM(name, { ports: [`${port}:80`], readiness: { type: 'Port', port: 80 } });
}

async function listen(port: number, address: string): Promise<Server> {
  const server = createServer().listen(port, address);
  await once(server, 'listening');
  return server;
}

async function close(server: Server): Promise<void> {
  server.close();
  await once(server, 'close');
}

test(
  'a disk that QEMU cannot open: Failed, with its last words',
  async () => {
    await makeStopped('emptied', { image: 'guest' });
    for (const { dataDirectory } of world.hosts.values()) {
      for (const machine of await listFolders(join(dataDirectory, 'machines'))) {
        await rm(join(dataDirectory, 'machines', machine, 'disk.qcow2'));
      }
    }
    const message = /qemu-system-x86_64: .*Could not open '.*disk\.qcow2': No such file or directory/;
    await expectNoStart('emptied', {}, { reason: 'DiskInvalid', message });
  },
  TEST_MILLISECONDS,
);

/** Waits for a machine with a complete disk and without a process. */
async function makeStopped(name: string, spec: Partial<VMSpec>): Promise<void> {
  await world.makeVM(name, { powerState: 'Stopped', ...spec });
  await world.vms.waitForPhase(name, 'Stopped', undefined, STEP);
}

async function expectNoStart(name: string, spec: Partial<VMSpec>, failure: Failure): Promise<void> {
  await world.patch(name, { powerState: 'Running', ...spec });
  await expectEnd(name, failure);
}
