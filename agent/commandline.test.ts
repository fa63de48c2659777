import { expect, test } from 'vitest';
import { ConfigError } from '../base/config.ts';
import { parseCommandLine } from './commandline.ts';

test.each([
  [['--config', 'a.yaml'], { name: 'run', config: 'a.yaml', logFile: undefined }],
  [['--config', 'a.yaml', '--log-file', 'a.log'], { name: 'run', config: 'a.yaml', logFile: 'a.log' }],
  [['doctor'], { name: 'doctor', config: undefined, output: 'text' }],
  [
    ['doctor', '--output', 'json', '--config', 'a.yaml'],
    { name: 'doctor', config: 'a.yaml', output: 'json' },
  ],
])('%j', (args, command) => {
  expect(parseCommandLine(args)).toEqual(command);
});

test.each([
  [['doctor', '--output', 'xml'], /--output: "xml" is not allowed, but text and json/],
  [['nurse'], /"nurse" is not allowed\. The only command is doctor/],
  [['doctor', 'nurse'], /"nurse" is not allowed/],
  [['--config', 'a.yaml', '--output', 'json'], /--output is for the command doctor only/],
  [['doctor', '--log-file', 'a.log'], /--log-file is not for the command doctor/],
  [['--no-such-option'], /--no-such-option/],
  [[], /--config FILE is missing/],
])('%j is refused', (args, message) => {
  const parse = () => parseCommandLine(args);
  expect(parse).toThrow(ConfigError);
  expect(parse).toThrow(message);
});
