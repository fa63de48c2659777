/** Released programs over TLS, each checked against the checksum that its publisher gives. */
import { execFile } from 'node:child_process';
import { createHash } from 'node:crypto';
import { createWriteStream } from 'node:fs';
import { chmod, rename, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { Readable, Transform } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { promisify } from 'node:util';
import type { Tool, ToolGroup } from './tools.ts';

/** A checksum file is a few bytes: who has not answered by then cannot be reached, and building begins. */
const REACHABLE_MILLISECONDS = 4_000;
/** Bounds one file; the largest has 100 MB. */
const DOWNLOAD_MILLISECONDS = 600_000;

export type Progress = (line: string) => void;

interface Download {
  url: string;
  sha256: string;
}

/** Puts `tools` of the group into `directory`. Throws when one can't be reached or has another checksum. */
export async function downloadTools(
  group: ToolGroup,
  tools: readonly Tool[],
  directory: string,
  progress: Progress,
): Promise<void> {
  for (const tool of tools) {
    const download = await locate(group, tool);
    progress(`downloading ${tool} ${group.version} from ${new URL(download.url).host}`);
    const target = join(directory, tool);
    if (download.url.endsWith('.tar.gz')) {
      await fetchArchiveMember(download, directory, tool);
    } else {
      await fetchChecked(download, target);
    }
    await chmod(target, 0o755);
  }
}

async function locate(group: ToolGroup, tool: Tool): Promise<Download> {
  const platform = `${process.platform}-${process.arch === 'x64' ? 'amd64' : process.arch}`;
  if (group.name === 'kubernetes') {
    const url = `https://dl.k8s.io/release/${group.version}/bin/${platform.replace('-', '/')}/${tool}`;
    const sha256 = (await fetchText(`${url}.sha256`)).trim().split(/\s+/)[0] ?? '';
    return { url, sha256 };
  }
  if (group.name === 'etcd') {
    return locateRelease('etcd-io/etcd', group.version, `etcd-${group.version}-${platform}.tar.gz`);
  }
  return locateRelease('kubernetes-sigs/kwok', group.version, `kwok-${platform}`);
}

interface Release {
  assets: { name: string; browser_download_url: string; digest?: string | null }[];
}

/** GitHub computes a SHA-256 of every release asset. */
async function locateRelease(repository: string, tag: string, asset: string): Promise<Download> {
  const text = await fetchText(`https://api.github.com/repos/${repository}/releases/tags/${tag}`);
  const found = (JSON.parse(text) as Release).assets.find((candidate) => candidate.name === asset);
  const sha256 = found?.digest?.replace(/^sha256:/, '');
  if (found === undefined || sha256 === undefined) {
    throw new Error(`${repository} ${tag} has no ${asset} with a checksum`);
  }
  return { url: found.browser_download_url, sha256 };
}

async function fetchText(url: string): Promise<string> {
  const response = await request(url, REACHABLE_MILLISECONDS);
  return response.text();
}

async function request(url: string, milliseconds: number): Promise<Response> {
  const response = await fetch(url, { signal: AbortSignal.timeout(milliseconds) }).catch((error: unknown) => {
    const cause = error instanceof Error && error.cause instanceof Error ? error.cause : error;
    throw new Error(`${url}: ${cause instanceof Error ? cause.message : String(cause)}`, { cause: error });
  });
  if (!response.ok) throw new Error(`${url}: HTTP ${response.status}`);
  return response;
}

async function fetchChecked(download: Download, target: string): Promise<void> {
  const response = await request(download.url, DOWNLOAD_MILLISECONDS);
  if (response.body === null) throw new Error(`${download.url}: empty answer`);
  const hash = createHash('sha256');
  const tee = new Transform({
    transform(chunk: Buffer, _encoding, done) {
      hash.update(chunk);
      done(undefined, chunk);
    },
  });
  await pipeline(Readable.fromWeb(response.body), tee, createWriteStream(target));
  const actual = hash.digest('hex');
  if (actual !== download.sha256) {
    await rm(target, { force: true });
    throw new Error(`${download.url}: SHA-256 is ${actual}, should be ${download.sha256}`);
  }
}

async function fetchArchiveMember(download: Download, directory: string, tool: Tool): Promise<void> {
  const archive = join(directory, `${tool}.tar.gz`);
  await fetchChecked(download, archive);
  const folder = new URL(download.url).pathname.split('/').pop()?.replace('.tar.gz', '') ?? '';
  await promisify(execFile)('tar', ['-xzf', archive, '-C', directory, `${folder}/${tool}`]);
  await rename(join(directory, folder, tool), join(directory, tool));
  await rm(join(directory, folder), { recursive: true });
  await rm(archive);
}
