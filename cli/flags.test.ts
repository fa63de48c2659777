import { Command } from 'commander';
import { expect, it } from 'vitest';
import { BooleanFlag, parseList, parseMemory, parsePairs, withBooleans } from './flags.ts';

it.each([
  ['512Mi', '512Mi'],
  ['4Gi', '4Gi'],
  ['4G', '4G'],
  ['4', '4096Mi'],
  ['0.25', '256Mi'],
])('reads the memory %s as %s', (text, quantity) => {
  expect(parseMemory(text)).toBe(quantity);
});

it.each(['', '4 Gi', '4GB', 'four'])('refuses the memory %j', (text) => {
  expect(() => parseMemory(text)).toThrow('a size such as 512Mi');
});

it('gives each boolean flag a value, so that a name after it stays a name', () => {
  const program = new Command();
  program.option('-n, --namespace <name>');
  program.command('deploy').addOption(new BooleanFlag('--generate-name', ''));
  const read = (...args: string[]) => withBooleans(program, args);
  expect(read('deploy', '--generate-name', 'ci', '-o', 'json')).toEqual([
    'deploy',
    '--generate-name=true',
    'ci',
    '-o',
    'json',
  ]);
  expect(read('deploy', '--generate-name', 'false')).toEqual(['deploy', '--generate-name=false']);
  expect(read('-n', 'deploy', 'deploy', '--generate-name')).toEqual([
    '-n',
    'deploy',
    'deploy',
    '--generate-name=true',
  ]);
  expect(read('deploy', '--', '--generate-name')).toEqual(['deploy', '--', '--generate-name']);
});

it('takes short boolean flags, alone, together and with a value, only for the command that has them', () => {
  const program = new Command();
  program
    .command('exec')
    .addOption(new BooleanFlag('-i, --stdin', ''))
    .addOption(new BooleanFlag('-t, --tty', ''));
  program.command('create').option('-i, --image <name>', '');
  const read = (...args: string[]) => withBooleans(program, args).slice(1);
  expect(read('exec', '-i', 'name')).toEqual(['--stdin=true', 'name']);
  expect(read('exec', '-it', 'name')).toEqual(['--stdin=true', '--tty=true', 'name']);
  expect(read('exec', '-i', 'false', '-t=yes')).toEqual(['--stdin=false', '--tty=yes']);
  expect(read('exec', '-ix')).toEqual(['-ix']);
  expect(read('create', '-i', 'exec')).toEqual(['-i', 'exec']);
});

it('reads pairs whose values have commas and equals signs', () => {
  expect(parsePairs('a=1,b=x=y,z,c=', { d: '4' })).toEqual({ a: '1', b: 'x=y,z', c: '', d: '4' });
  expect(() => parsePairs('a')).toThrow('key=value');
});

it('reads lists, also in several flags', () => {
  expect(parseList('8080:80,', ['2222:22'])).toEqual(['2222:22', '8080:80']);
  expect(parseList('one@berth.example, two@berth.example ,')).toEqual([
    'one@berth.example',
    'two@berth.example',
  ]);
});
