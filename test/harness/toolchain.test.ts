import { chmodSync, existsSync, mkdirSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { beforeEach, describe, expect, test } from 'vitest';
import type { Source } from '../../hack/cluster/toolchain/build.ts';
import { checkTools, resolveTools } from '../../hack/cluster/toolchain/toolchain.ts';
import { TOOL_GROUPS, type Tool } from '../../hack/cluster/toolchain/tools.ts';
import { makeFolder } from '../support/folder.ts';

const TOOLS = TOOL_GROUPS.flatMap((group) => Object.keys(group.packages) as Tool[]);

let folder: string;

beforeEach(() => {
  folder = makeFolder();
});

function program(path: string): void {
  writeFileSync(path, '#!/bin/sh\n');
  chmodSync(path, 0o755);
}

/** Returns a source that puts empty programs into the given folder. The count of its calls shows how often it made programs. */
function working(name = 'build'): Source & { calls: number } {
  const source = {
    name,
    calls: 0,
    check: async () => undefined,
    make: async (_group: unknown, tools: readonly Tool[], directory: string): Promise<void> => {
      source.calls += 1;
      for (const tool of tools) {
        program(join(directory, tool));
      }
    },
  };
  return source;
}

function failing(name: string, message: string): Source {
  const fail = async (): Promise<void> => {
    throw new Error(message);
  };
  return { name, check: fail, make: fail };
}

const quiet = (): void => undefined;

describe('the toolchain', () => {
  test.each([
    ['before it starts', checkTools],
    ['when it needs the programs', resolveTools],
  ])('names its attempts and what helps if nothing works, %s', async (_, act) => {
    const sources = [failing('download', 'no answer'), failing('build', 'go: not found')];
    const environment = { XDG_CACHE_HOME: folder };
    const error = await act({ environment, sources, progress: quiet }).catch((thrown: unknown) => thrown);
    expect(error).toBeInstanceOf(Error);
    const { message } = error as Error;
    for (const part of [
      'KUBEBUILDER_ASSETS: not set',
      `cache: not in ${folder}`,
      'download: no answer',
      'build: go: not found',
      'set KUBEBUILDER_ASSETS to a folder',
      'install Go',
    ]) {
      expect(message).toContain(part);
    }
  });

  test('builds only what cannot be downloaded', async () => {
    const [download, build] = [working('download'), working()];
    const environment = { XDG_CACHE_HOME: folder };
    await checkTools({ environment, sources: [download, build] });
    expect(download.calls).toBe(0);
    await resolveTools({ environment, sources: [download, build], progress: quiet });
    expect([download.calls, build.calls]).toEqual([TOOL_GROUPS.length, 0]);
    const other = { XDG_CACHE_HOME: join(folder, 'other') };
    await resolveTools({ environment: other, sources: [failing('download', 'no'), build], progress: quiet });
    expect(build.calls).toBe(TOOL_GROUPS.length);
  });

  test('uses the programs in KUBEBUILDER_ASSETS, and looks nowhere else', async () => {
    for (const tool of TOOLS) {
      program(join(folder, tool));
    }
    const cache = { XDG_CACHE_HOME: join(folder, 'cache') };
    await resolveTools({ environment: cache, sources: [working()], progress: quiet });
    const tools = await resolveTools({
      environment: { ...cache, KUBEBUILDER_ASSETS: folder },
      sources: [failing('build', 'asked')],
      progress: quiet,
    });
    expect(tools).toEqual(Object.fromEntries(TOOLS.map((tool) => [tool, join(folder, tool)])));
  });

  test('builds missing programs once, and then takes them from the cache', async () => {
    const build = working();
    const options = {
      environment: { XDG_CACHE_HOME: folder },
      sources: [build],
      progress: quiet,
    };
    const tools = await resolveTools(options);
    expect(TOOLS.every((tool) => existsSync(tools[tool as keyof typeof tools]))).toBe(true);
    expect(build.calls).toBe(TOOL_GROUPS.length);
    expect(await resolveTools(options)).toEqual(tools);
    expect(build.calls).toBe(TOOL_GROUPS.length);
  });

  test('builds once for several callers at the same time, and leaves no lock and no partial build', async () => {
    const build = working();
    const options = {
      environment: { XDG_CACHE_HOME: folder },
      sources: [build],
      progress: quiet,
    };
    await Promise.all([resolveTools(options), resolveTools(options), resolveTools(options)]);
    expect(build.calls).toBe(TOOL_GROUPS.length);
    const left = readdirSync(join(folder, 'berth', 'toolchain'));
    expect(left).toHaveLength(TOOL_GROUPS.length);
  });

  test('takes over the lock of a process that has ended', async () => {
    const build = working();
    const options = {
      environment: { XDG_CACHE_HOME: folder },
      sources: [build],
      progress: quiet,
    };
    await resolveTools(options);
    const toolchain = join(folder, 'berth', 'toolchain');
    for (const name of readdirSync(toolchain)) {
      rmSync(join(toolchain, name), { recursive: true });
      mkdirSync(join(toolchain, `${name}.lock`));
      const holder = JSON.stringify({ pid: process.pid, startTime: '1' });
      writeFileSync(join(toolchain, `${name}.lock`, 'holder'), holder);
    }
    await resolveTools(options);
    expect(build.calls).toBe(2 * TOOL_GROUPS.length);
  });
});
