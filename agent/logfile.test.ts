import {
  closeSync,
  openSync,
  readdirSync,
  readFileSync,
  statSync,
  symlinkSync,
  writeFileSync,
  writeSync,
} from 'node:fs';
import { join } from 'node:path';
import { pino } from 'pino';
import { expect, it } from 'vitest';
import { makeFolder } from '../test/support/folder.ts';
import { boundLog, LOG_BYTES, shortenLog } from './logfile.ts';

const logger = pino({ level: 'silent' });

it('moves a log that is too long into the earlier log, and what is written later goes on at its new end', () => {
  const path = join(makeFolder(), 'agent.log');
  const output = openSync(path, 'a');
  for (const text of ['first', 'second']) {
    writeSync(output, Buffer.alloc(LOG_BYTES, text));
    shortenLog(path, logger);
    expect(statSync(path).size).toBe(LOG_BYTES);
    writeSync(output, `end of ${text}`);
    shortenLog(path, logger);
    expect(statSync(path).size).toBe(0);
    expect(readFileSync(`${path}.1`, 'utf8').endsWith(`end of ${text}`)).toBe(true);
  }
  writeSync(output, 'new');
  closeSync(output);
  expect(readFileSync(path, 'utf8')).toBe('new');
});

it('drops the content if there is no room for an earlier log', () => {
  const folder = makeFolder();
  const path = join(folder, 'agent.log');
  writeFileSync(path, Buffer.alloc(LOG_BYTES + 1));
  symlinkSync(join(folder, 'none', 'agent.log'), `${path}.1`);
  shortenLog(path, logger);
  expect(statSync(path).size).toBe(0);
  expect(readdirSync(folder)).toEqual(['agent.log']);
});

it('shortens no file that is not the output of the agent', () => {
  const path = join(makeFolder(), 'agent.yaml');
  writeFileSync(path, Buffer.alloc(LOG_BYTES + 1));
  expect(() => boundLog(path, logger)).toThrow(`--log-file: ${path} is not the standard output of the agent`);
  expect(statSync(path).size).toBe(LOG_BYTES + 1);
});
