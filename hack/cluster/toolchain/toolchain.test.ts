import { createHash } from 'node:crypto';
import { chmod, mkdir, readFile, writeFile } from 'node:fs/promises';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { run } from '../../../base/exec.ts';
import { DOWNLOAD } from './toolchain.ts';
import { TOOL_GROUPS, type ToolGroup } from './tools.ts';
import { makeFolder } from '../../../test/support/folder.ts';

const PROGRAM = '#!/bin/sh\necho v1\n';

let folder: string;
let server: Server;
let site: string;
/** Content of the site by path. Other paths have none. */
let files: Map<string, string | Buffer>;

beforeEach(async () => {
  folder = makeFolder();
  files = new Map();
  server = createServer((request, response) => {
    const content = files.get(request.url ?? '');
    response.writeHead(content === undefined ? 404 : 200).end(content);
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  site = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
});

afterEach(async () => {
  server.closeAllConnections();
  server.close();
});

function sha256(content: string | Buffer): string {
  return createHash('sha256').update(content).digest('hex');
}

/** Returns a group whose projects publish on the site of the test. */
function published(name: 'etcd' | 'kubernetes'): ToolGroup {
  const group = TOOL_GROUPS.find((one) => one.name === name);
  if (group?.publication === undefined) {
    throw new Error(`${name} is not published`);
  }
  const { publication } = group;
  const here = (url: string): string => `${site}${new URL(url).pathname}`;
  return {
    ...group,
    publication(tool, architecture) {
      const { url, checksums } = publication(tool, architecture);
      return { url: here(url), checksums: here(checksums) };
    },
  };
}

const ARCHITECTURE = process.arch === 'arm64' ? 'arm64' : 'amd64';
const quiet = (): void => undefined;

test('a program beside its checksum is fetched, and can be executed', async () => {
  const group = published('kubernetes');
  const path = `/release/${group.version}/bin/linux/${ARCHITECTURE}/kube-scheduler`;
  files.set(path, PROGRAM).set(`${path}.sha256`, sha256(PROGRAM));
  await DOWNLOAD.check(group, ['kube-scheduler']);
  await DOWNLOAD.make(group, ['kube-scheduler'], folder, quiet);
  expect(await run(join(folder, 'kube-scheduler'), [], { timeoutMilliseconds: 10_000 })).toBe('v1\n');
});

test('a program of an archive is unpacked, with the checksum from a list of many', async () => {
  const group = published('etcd');
  const name = `etcd-${group.version}-linux-${ARCHITECTURE}`;
  await mkdir(join(folder, name));
  await writeFile(join(folder, name, 'etcd'), PROGRAM);
  await chmod(join(folder, name, 'etcd'), 0o755);
  await run('tar', ['-czf', join(folder, 'a.tar.gz'), '-C', folder, name], { timeoutMilliseconds: 10_000 });
  const archive = await readFile(join(folder, 'a.tar.gz'));
  const path = `/etcd-io/etcd/releases/download/${group.version}`;
  files.set(`${path}/SHA256SUMS`, `${sha256('other')}  other.zip\n${sha256(archive)}  ${name}.tar.gz\n`);
  files.set(`${path}/${name}.tar.gz`, archive);
  await DOWNLOAD.make(group, ['etcd'], folder, quiet);
  expect(await readFile(join(folder, 'etcd'), 'utf8')).toBe(PROGRAM);
});

test('content that is not that of the checksum is refused, and so is a site that has no checksum', async () => {
  const group = published('kubernetes');
  const path = `/release/${group.version}/bin/linux/${ARCHITECTURE}/kubectl`;
  await expect(DOWNLOAD.check(group, ['kubectl'])).rejects.toThrow(`${path}.sha256: HTTP 404`);
  files.set(`${path}.sha256`, '<html>').set(path, `${PROGRAM}# other`);
  await expect(DOWNLOAD.check(group, ['kubectl'])).rejects.toThrow('has no SHA-256 of kubectl');
  files.set(`${path}.sha256`, `${sha256(PROGRAM)}\n`);
  await expect(DOWNLOAD.make(group, ['kubectl'], folder, quiet)).rejects.toThrow('has not the SHA-256');
});

test('a site that nobody can reach, and a program that nobody publishes, are said', async () => {
  const group = published('kubernetes');
  server.close();
  await expect(DOWNLOAD.check(group, ['kubectl'])).rejects.toThrow('ECONNREFUSED');
  const { publication: _, ...own } = group;
  await expect(DOWNLOAD.check(own, ['kubectl'])).rejects.toThrow('no download of kubectl for linux');
});
