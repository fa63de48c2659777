import { execFileSync } from 'node:child_process';
import { chmodSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { beforeEach, describe, expect, it } from 'vitest';
import { makeFolder } from '../../test/support/folder.ts';

const DOCKERFILE = readFileSync(join(import.meta.dirname, '..', '..', 'Dockerfile'), 'utf8');
const STAND_INS = {
  // No package is installed yet.
  'dpkg-query': 'exit 1',
  dpkg: 'echo amd64',
  // Records its arguments, and the archive from which it would have installed the packages.
  'apt-get': [
    'printf "%s\\n" "$*" >> "$NOTES"',
    'for word; do case $word in Dir::Etc::SourceList=*) cat "${word#*=}" >> "$NOTES";; esac; done',
  ].join('\n'),
};

describe('the images', () => {
  it('begin with a base that is named by its digest', () => {
    expect(DOCKERFILE).toMatch(/^ARG BASE=\S+@sha256:[0-9a-f]{64}$/m);
    const stages = [...DOCKERFILE.matchAll(/^FROM (?<from>\S+)(?: AS (?<name>\S+))?$/gm)];
    const own = new Set(stages.map((stage) => stage.groups?.['name']));
    const others = stages.map((stage) => stage.groups?.['from'] ?? '').filter((from) => !own.has(from));
    expect(others.toSorted()).toEqual(['${BASE}', 'scratch']);
  });

  describe('take their packages', () => {
    let folder: string;
    let notes: string;

    beforeEach(() => {
      folder = makeFolder();
      notes = join(folder, 'notes');
      for (const [name, text] of Object.entries(STAND_INS)) {
        writeFileSync(join(folder, name), `#!/bin/sh\n${text}\n`);
        chmodSync(join(folder, name), 0o755);
      }
    });

    function install(...parameters: string[]): string {
      execFileSync('sh', [join(import.meta.dirname, 'install-packages.sh'), ...parameters], {
        env: { PATH: `${folder}:${process.env['PATH']}`, NOTES: notes },
      });
      return readFileSync(notes, 'utf8');
    }

    it('from the archive of one moment, also security updates, and from nowhere else', () => {
      const snapshot = /^ARG SNAPSHOT=(\d{8}T\d{6}Z)$/m.exec(DOCKERFILE)?.[1] ?? '';
      expect(DOCKERFILE).toContain('install-packages.sh "$SNAPSHOT"');
      const noted = install(snapshot, 'ipmitool');
      expect(noted).toMatch(new RegExp(`^deb http://\\S+/debian/${snapshot} \\S+ main$`, 'm'));
      expect(noted).toMatch(
        new RegExp(`^deb http://\\S+/debian-security/${snapshot} \\S+-security main$`, 'm'),
      );
      const archives = noted.split('\n').filter((line) => line.startsWith('deb'));
      expect(archives.filter((line) => !line.includes(`/${snapshot} `))).toEqual([]);
      const asked = noted.split('\n').filter((line) => line.includes('install') || line.includes('update'));
      expect(asked).toHaveLength(2);
      for (const line of asked) {
        expect(line).toContain('-o Dir::Etc::SourceParts=-');
        expect(line).toContain('-o Dir::Etc::SourceList=');
      }
    });

    it('from the sources of the base image if no moment is named', () => {
      expect(install('', 'ipmitool')).toMatch(/^install .* ipmitool$/m);
      expect(install('', 'ipmitool')).not.toContain('Dir::Etc');
    });
  });
});
