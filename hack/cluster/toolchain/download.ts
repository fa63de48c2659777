/**
 * Downloads the programs that their projects publish for Linux, and compares them with the checksums beside them. A checksum from the same
 * site shows a damaged file, and no more: whoever trusts no site sets KUBEBUILDER_ASSETS, or builds with Go.
 */
import { createHash } from 'node:crypto';
import { createWriteStream } from 'node:fs';
import { chmod, rm } from 'node:fs/promises';
import { basename, join } from 'node:path';
import { pipeline as pipelineOf, Readable, Transform } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { EnvHttpProxyAgent, fetch, type Response } from 'undici';
import { messageOf } from '../../../base/errors.ts';
import { run } from '../../../base/exec.ts';
import type { Source } from './build.ts';
import type { Publication, Tool, ToolGroup } from './tools.ts';

/** Time limit of a list of checksums. A site that a firewall hides must not delay the next way to get the programs. */
const CHECKSUM_MILLISECONDS = 5_000;
/** Time limit of a program. The largest has 90 MB, which a slow connection needs some minutes for. */
const PROGRAM_MILLISECONDS = 15 * 60_000;
/** Limit of a list of checksums. That of etcd has 3 KB. */
const CHECKSUM_BYTES = 64 * 1024;
/** Limit of a program, several times the largest. */
const PROGRAM_BYTES = 500 * 1024 * 1024;
/** Time limit of tar for an archive of some 20 MB on a busy machine. */
const UNPACK_MILLISECONDS = 60_000;
/** Names of the processors in the addresses. */
const ARCHITECTURES: Readonly<Partial<Record<NodeJS.Architecture, string>>> = {
  x64: 'amd64',
  arm64: 'arm64',
};

/** A published file, and the SHA-256 that its project names. */
interface PublishedFile {
  readonly url: string;
  readonly sha256: string;
}

/** Downloads what `Publication` names. It uses the proxy of the environment. */
export const DOWNLOAD: Source = {
  name: 'download',
  async check(group, tools) {
    await Promise.all(tools.map(async (tool) => await findFile(group, tool)));
  },
  async make(group, tools, directory, progress) {
    const files = await Promise.all(tools.map(async (tool) => await findFile(group, tool)));
    progress(`downloading ${tools.join(', ')} ${group.version} from ${new URL(files[0]?.url ?? '').host}`);
    // All downloads have ended before a failure is reported, because the next way writes into the same folder.
    const results = await Promise.allSettled(
      files.map(async (file, index) => await getTool(file, tools[index], directory)),
    );
    const failed = results.find((result) => result.status === 'rejected');
    if (failed !== undefined) {
      throw failed.reason;
    }
  },
};

/** Reads the checksum of a tool. @throws Error when the tool is not published for this machine, or the site does not answer in time. */
async function findFile(group: ToolGroup, tool: Tool): Promise<PublishedFile> {
  const { url, checksums } = publicationOf(group, tool);
  const chunks: Buffer[] = [];
  for await (const chunk of await open(checksums, CHECKSUM_MILLISECONDS, CHECKSUM_BYTES)) {
    chunks.push(chunk as Buffer);
  }
  const lines = Buffer.concat(chunks).toString('utf8').split('\n');
  const message = lines.map((line) => line.trim().split(/\s+/));
  // The list of a single file has no name.
  const line = message.find(([, name]) => name === undefined || name === basename(url));
  const [sha256 = ''] = line ?? [];
  if (!/^[0-9a-f]{64}$/.test(sha256)) {
    throw new Error(`${checksums} has no SHA-256 of ${basename(url)}`);
  }
  return { url, sha256 };
}

function publicationOf(group: ToolGroup, tool: Tool): Publication {
  const architecture = ARCHITECTURES[process.arch];
  if (group.publication === undefined || architecture === undefined || process.platform !== 'linux') {
    throw new Error(`no download of ${tool} for ${process.platform} on ${process.arch} is known`);
  }
  return group.publication(tool, architecture);
}

async function getTool(
  { url, sha256 }: PublishedFile,
  tool: Tool | undefined,
  directory: string,
): Promise<void> {
  const path = join(directory, tool ?? '');
  const isArchive = url.endsWith('.tar.gz');
  const file = isArchive ? `${path}.tar.gz` : path;
  const hash = createHash('sha256');
  const hashing = new Transform({
    transform(chunk: Buffer, _encoding, next) {
      hash.update(chunk);
      next(null, chunk);
    },
  });
  const body = await open(url, PROGRAM_MILLISECONDS, PROGRAM_BYTES);
  await pipeline(body, hashing, createWriteStream(file));
  if (hash.digest('hex') !== sha256) {
    throw new Error(`${url} has not the SHA-256 that its project names, ${sha256}`);
  }
  if (isArchive) {
    const member = `${basename(url, '.tar.gz')}/${tool}`;
    await run('tar', ['-xzf', file, '-C', directory, '--no-same-owner', '--strip-components=1', member], {
      timeoutMilliseconds: UNPACK_MILLISECONDS,
    });
    await rm(file);
  }
  await chmod(path, 0o755);
}

/** Returns the content at an address. @throws Error when the site does not answer, or the content is late or has more than `limit` bytes. */
async function open(url: string, milliseconds: number, limit: number): Promise<Readable> {
  let response: Response;
  try {
    const signal = AbortSignal.timeout(milliseconds);
    response = await fetch(url, { signal, dispatcher: new EnvHttpProxyAgent() });
  } catch (error) {
    throw new Error(`${url}: ${reasonOf(error)}`, { cause: error });
  }
  if (!response.ok || response.body === null) {
    await response.body?.cancel();
    throw new Error(`${url}: HTTP ${response.status}`);
  }
  let bytes = 0;
  const counting = new Transform({
    transform(chunk: Buffer, _encoding, next) {
      bytes += chunk.length;
      next(bytes > limit ? new Error(`${url} has more than ${limit} bytes`) : null, chunk);
    },
  });
  // If one of both streams fails or is destroyed, the other one is destroyed, too. The reader gets the error from the returned stream.
  return pipelineOf(Readable.fromWeb(response.body), counting, () => undefined);
}

/** Returns the message of the cause, because fetch says only that it failed. */
function reasonOf(error: unknown): string {
  return messageOf(error instanceof Error && error.cause !== undefined ? error.cause : error);
}
