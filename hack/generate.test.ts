import { execFile } from 'node:child_process';
import { appendFile, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { beforeEach, describe, expect, it } from 'vitest';
import { makeFolder } from '../test/support/folder.ts';

const ROOT = join(import.meta.dirname, '..');

async function generate(...args: string[]): Promise<{ code: number; stdout: string; stderr: string }> {
  return await new Promise((resolve) => {
    const child = execFile(
      process.execPath,
      [join(ROOT, 'hack', 'generate.ts'), ...args],
      (_error, stdout, stderr) => {
        resolve({ code: child.exitCode ?? -1, stdout, stderr });
      },
    );
  });
}

let folder: string;
beforeEach(() => {
  folder = makeFolder();
});

describe('generate', () => {
  it('reports that the committed definitions are current', async () => {
    expect(await generate('--check')).toEqual({ code: 0, stdout: '', stderr: '' });
  });

  it('names each file that is missing, changed, or of no kind', async () => {
    await generate('--output', folder);
    const vms = join(folder, 'berth.dev_vms.yaml');
    await writeFile(vms, (await readFile(vms, 'utf8')).replace('maximum: 3840', 'maximum: 3841'));
    await appendFile(join(folder, 'berth.dev_old.yaml'), 'old');
    await rm(join(folder, 'berth.dev_isos.yaml'));
    const { code, stderr } = await generate('--check', '--output', folder);
    expect(code).toBe(1);
    expect(stderr).toContain('berth.dev_old.yaml: no kind makes this file');
    expect(stderr).toContain('berth.dev_isos.yaml: missing');
    expect(stderr).toMatch(/berth\.dev_vms\.yaml:\d+: is .*3841.*should be .*3840/);
  });

  it('writes one file for each kind and removes those of kinds that are gone', async () => {
    await writeFile(join(folder, 'berth.dev_old.yaml'), 'old');
    await writeFile(join(folder, 'other.yaml'), 'kept');
    await generate('--output', folder);
    expect((await readdir(folder)).toSorted()).toEqual(
      [
        'emulators',
        'imagecacheentries',
        'images',
        'isos',
        'runnersets',
        'servers',
        'vmconfigs',
        'vmpools',
        'vms',
        'vmsnapshots',
      ]
        .map((plural) => `berth.dev_${plural}.yaml`)
        .concat('other.yaml'),
    );
  });

  it('differs only in the DPI between the two maxima', async () => {
    const lines = (await generate('--display-dpi-maximum', '320')).stdout.split('\n');
    const committed = (await generate('--display-dpi-maximum', '240')).stdout.split('\n');
    const changed = lines.filter((line, index) => line !== committed[index]);
    expect(lines).toHaveLength(committed.length);
    expect(changed).toHaveLength(16);
    expect(changed.every((line) => line.includes('320'))).toBe(true);
  });

  it('refuses any other maximum', async () => {
    const { code, stderr } = await generate('--display-dpi-maximum', '300');
    expect(code).not.toBe(0);
    expect(stderr).toContain('--display-dpi-maximum must be 240 or 320, not 300');
  });
});
