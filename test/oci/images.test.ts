/** The images as users see them who pull, scan or run them. */
import { existsSync } from 'node:fs';
import { readdir, readFile, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { run } from '../../base/exec.ts';
import packageLock from '../../package-lock.json' with { type: 'json' };
import { FILES } from '../../server/documentation.ts';
import { image, unfit } from './provided.ts';

const OPERATOR_LIMIT_BYTES = 200e6;
/** Time limit of a program that ends at once, on a busy machine. */
const PROGRAM_MILLISECONDS = 30_000;

describe.each(['operator', 'agent'] as const)('the image of the %s', (name) => {
  test('has labels with its name, version and sources', async ({ skip }) => {
    if (unfit !== undefined) {
      skip(unfit);
    }
    const { config } = image(name);
    expect(image(name).name).toMatch(new RegExp(`^localhost/berth-${name}:\\d+\\.\\d+\\.\\d+$`));
    const flags = name === 'operator' ? ['--min-semi-space-size=8'] : [];
    expect(config.Entrypoint).toEqual(['/usr/local/bin/node', ...flags, `/opt/berth/${name}.mjs`]);
    expect(config.Cmd).toEqual(['--config', `/etc/berth/${name}.yaml`]);
    expect(config.Labels).toMatchObject({
      'org.opencontainers.image.title': `Berth ${name}`,
      'org.opencontainers.image.licenses': 'Apache-2.0',
      'org.opencontainers.image.version': expect.stringMatching(/^\d+\.\d+\.\d+$/) as string,
      'org.opencontainers.image.revision': expect.stringMatching(/^[0-9a-f]{40}$/) as string,
      'org.opencontainers.image.created': expect.stringMatching(/^\d{4}-\d\d-\d\dT/) as string,
    });
  });

  test('has the licence, and a bill of materials with Node.js and every direct dependency', async ({
    skip,
  }) => {
    if (unfit !== undefined) {
      skip(unfit);
    }
    const own = join(image(name).root, 'opt', 'berth');
    expect(await readFile(join(own, 'LICENSE'), 'utf8')).toContain('Apache License');
    const bill = JSON.parse(await readFile(join(own, 'sbom.cdx.json'), 'utf8')) as {
      bomFormat: string;
      components: { name: string; version: string; licenses?: unknown[] }[];
    };
    expect(bill.bomFormat).toBe('CycloneDX');
    const listed = new Set(bill.components.map((component) => `${component.name}@${component.version}`));
    expect(listed).toContain(`node@${process.versions.node}`);
    for (const dependency of Object.keys(packageLock.packages[''].dependencies)) {
      const locked = packageLock.packages as Record<string, { version?: string }>;
      expect(listed).toContain(`${dependency}@${locked[`node_modules/${dependency}`]?.version}`);
    }
  });

  test('keeps the list of its Debian packages for scanners', async ({ skip }) => {
    if (unfit !== undefined) {
      skip(unfit);
    }
    const database = join(image(name).root, 'var', 'lib', 'dpkg');
    const file = name === 'operator' ? join('status.d', 'libc6') : 'status';
    expect(await readFile(join(database, file), 'utf8')).toMatch(/^Package: libc6\n(?:.+\n)*Version: /m);
  });
});

test('the operator image is small, has no shell, and runs as a user without rights', async ({ skip }) => {
  if (unfit !== undefined) {
    skip(unfit);
  }
  const { root, bytes, config } = image('operator');
  process.stderr.write(`operator image: ${(bytes / 1e6).toFixed(1)} MB, agent image: `);
  process.stderr.write(`${(image('agent').bytes / 1e6).toFixed(1)} MB\n`);
  expect(bytes).toBeLessThan(OPERATOR_LIMIT_BYTES);
  expect(config.User).toBe('65532:65532');
  expect(Object.keys(config.ExposedPorts ?? {})).toEqual(['8081/tcp', '8443/tcp', '8444/tcp']);
  const files = await readdir(root, { recursive: true, withFileTypes: true });
  const programs: string[] = [];
  const unsafe: string[] = [];
  for (const file of files.filter((entry) => entry.isFile())) {
    const path = join(file.parentPath, file.name);
    const { mode } = await stat(path);
    // The image must have no set-user-ID programs, and no files that others may write.
    if ((mode & 0o6002) !== 0) {
      unsafe.push(path);
    }
    if ((mode & 0o111) !== 0 && !/\.so(\.\d+)*$/.test(path)) {
      programs.push(path.slice(root.length));
    }
  }
  expect(programs.toSorted()).toEqual(['/usr/bin/ipmitool', '/usr/local/bin/node']);
  expect(unsafe).toEqual([]);
});

test('the operator image has ipmitool with its libraries, and the licences of their packages', async ({
  skip,
}) => {
  if (unfit !== undefined) {
    skip(unfit);
  }
  const { root } = image('operator');
  const version = await run('chroot', [root, '/usr/bin/ipmitool', '-V'], {
    timeoutMilliseconds: PROGRAM_MILLISECONDS,
    environment: { PATH: process.env['PATH'] },
  });
  expect(version).toMatch(/^ipmitool version \d/);
  const packages = await readdir(join(root, 'var', 'lib', 'dpkg', 'status.d'));
  expect(packages).toEqual(expect.arrayContaining(['ipmitool', 'libc6', 'libssl3t64']));
  const licences = await readdir(join(root, 'usr', 'share', 'doc'));
  expect(licences.toSorted()).toEqual(packages.toSorted());
});

test('the operator image has the files of the pages of the HTTP API, with their licence', async ({
  skip,
}) => {
  if (unfit !== undefined) {
    skip(unfit);
  }
  const folder = join(image('operator').root, 'opt', 'berth', 'node_modules', 'swagger-ui-dist');
  expect(await readdir(folder)).toEqual(
    expect.arrayContaining(['LICENSE', 'NOTICE', 'package.json', ...Object.keys(FILES)]),
  );
  const consoleFolder = join(image('operator').root, 'opt', 'berth', 'console');
  const files = ['console.js', 'novnc.LICENSE.txt', 'novnc.js', 'style.css'];
  expect((await readdir(consoleFolder)).toSorted()).toEqual(files);
});

test('the agent image has the programs that the agent calls', async ({ skip }) => {
  if (unfit !== undefined) {
    skip(unfit);
  }
  const { root, config } = image('agent');
  expect(config.User).toBe('0:0');
  const folders = config.Env.find((entry) => entry.startsWith('PATH='))?.slice('PATH='.length) ?? '';
  const called = ['qemu-img', 'xz', 'ip', 'nft', 'conntrack', 'dnsmasq', 'unshare', 'nsenter'];
  const hypervisor = process.arch === 'arm64' ? 'qemu-system-aarch64' : 'qemu-system-x86_64';
  const missing = [...called, hypervisor].filter(
    (program) => !folders.split(':').some((path) => existsSync(join(root, path, program))),
  );
  expect(missing).toEqual([]);
});
