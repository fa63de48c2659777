import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { parse } from 'yaml';
import { run } from '../base/exec.ts';
import { createKey, selfSigned } from '../kube/certificates/certificate.ts';
import { authenticationConfiguration } from './authentication.ts';
import { makeFolder } from '../test/support/folder.ts';

/** Time limit of the command. It takes half a second, and longer on a busy machine. */
const COMMAND_MILLISECONDS = 30_000;
const ISSUER = 'https://id.example/realms/berth';

interface Configuration {
  jwt: [
    {
      issuer: Record<string, unknown>;
      claimValidationRules: { expression: string }[];
      claimMappings: { groups: { expression: string } };
    },
  ];
}

async function command(...parameters: string[]): Promise<string> {
  const program = join(import.meta.dirname, 'authentication.ts');
  return await run(process.execPath, [program, ...parameters], { timeoutMilliseconds: COMMAND_MILLISECONDS });
}

describe('the command', () => {
  it('prints a configuration for the client of the provider, with the authority in it', async () => {
    const folder = makeFolder();
    const pem = await selfSigned({ key: await createKey(), commonName: 'authority', days: 1 });
    const authority = join(folder, 'ca.crt');
    await writeFile(authority, pem);
    const text = await command(
      ISSUER,
      'desk',
      '--managed-group=devs',
      '--managed-group=admins',
      '--authority',
      authority,
    );
    const [provider] = (parse(text) as Configuration).jwt;
    expect(provider.issuer).toEqual({ url: ISSUER, audiences: ['desk'], certificateAuthority: pem });
    expect(provider.claimValidationRules.map(({ expression }) => expression)).toEqual([
      'claims.exp - claims.iat <= 3600',
      expect.stringContaining('type(dyn(claims["groups"])) == list'),
    ]);
    expect(provider.claimMappings.groups.expression).toContain(
      'g in ["devs", "admins"]) ? [] : ["berth:cluster-admins"]',
    );
  });

  it('makes nobody a cluster administrator in the hardened profile', async () => {
    const text = await command(ISSUER, 'desk', '--hardened', '--groups-claim=cognito:groups');
    expect(text).not.toContain('cluster-admins');
    const [{ claimMappings }] = (parse(text) as Configuration).jwt;
    expect(claimMappings.groups.expression).toMatch(
      / \? dyn\(claims\["cognito:groups"\]\)\.map\(g, "oidc:" \+ string\(g\)\) : \[\]$/,
    );
  });

  it.each([
    ['without a choice of the profile', [ISSUER, 'desk'], 'either --managed-group'],
    ['with both profiles', [ISSUER, 'desk', '--hardened', '--managed-group=devs'], 'either --managed-group'],
    ['without a client', [ISSUER, '--hardened'], 'usage:'],
    [
      'with a program for an authority',
      [ISSUER, 'desk', '--hardened', `--authority=${import.meta.filename}`],
      'PEM',
    ],
  ])('refuses to print one %s', async (_, parameters, expected) => {
    await expect(command(...parameters)).rejects.toThrow(expected);
  });
});

describe('the configuration', () => {
  it.each([
    'http://id.example',
    'id.example',
    'https://user:secret@id.example',
    'https://id.example/?realm=berth',
    'https://id.example/#realm',
    ' https://id.example',
  ])('is for no issuer such as %j', (issuer) => {
    expect(() => authenticationConfiguration({ issuer, client: 'desk', hardened: true })).toThrow('ISSUER');
  });

  it.each(['', ' devs', 'devs ', 'oidc:devs'])('is for no group such as %j', (group) => {
    expect(() =>
      authenticationConfiguration({ issuer: ISSUER, client: 'desk', managedGroups: ['admins', group] }),
    ).toThrow(/spaces around|without oidc:/);
  });

  describe('for a second provider', () => {
    const first = authenticationConfiguration({ issuer: ISSUER, client: 'desk', hardened: true });
    const second = { issuer: 'https://other.example', client: 'desk', hardened: true, beside: first };

    it('keeps the users and groups of both apart', () => {
      const { jwt } = authenticationConfiguration({ ...second, userPrefix: 'corp:', groupPrefix: 'corp:' });
      expect(jwt.map(({ claimMappings }) => claimMappings.username.expression)).toEqual([
        'claims.email_verified ? claims.email : ""',
        'claims.email_verified ? "corp:" + claims.email : ""',
      ]);
      expect(
        jwt.map(({ claimMappings }) => /"[^"]*" \+ string/.exec(claimMappings.groups.expression)?.[0]),
      ).toEqual(['"oidc:" + string', '"corp:" + string']);
      // The first provider has no prefix for users, so it must not name those of the second.
      expect(jwt[0]?.userValidationRules.map(({ expression }) => expression)).toContain(
        '!user.username.startsWith("corp:")',
      );
    });

    it.each([
      ['without prefixes', {}, '--user-prefix'],
      ['without a prefix for groups', { userPrefix: 'corp:' }, '--group-prefix'],
      ['with an empty prefix', { userPrefix: '', groupPrefix: 'corp:' }, '--user-prefix'],
      ['with the groups of the first', { userPrefix: 'corp:', groupPrefix: 'oidc:' }, '"oidc:" is taken'],
      ['with the beginning of another prefix', { userPrefix: 'corp:', groupPrefix: 'o' }, '--group-prefix'],
      ['with a longer other prefix', { userPrefix: 'corp:', groupPrefix: 'oidc:b:' }, '--group-prefix'],
      ['with users of the system', { userPrefix: 'system:', groupPrefix: 'corp:' }, 'system: or berth:'],
      ['with groups of Berth', { userPrefix: 'corp:', groupPrefix: 'berth:' }, 'system: or berth:'],
      [
        'with the issuer of the first',
        { issuer: ISSUER, userPrefix: 'a:', groupPrefix: 'a:' },
        'already has',
      ],
    ])('is none %s', (_, options, expected) => {
      expect(() => authenticationConfiguration({ ...second, ...options })).toThrow(expected);
    });

    it('is none with the users of an earlier one', () => {
      const beside = authenticationConfiguration({ ...second, userPrefix: 'corp:', groupPrefix: 'corp:' });
      const third = { ...second, issuer: 'https://third.example', beside };
      expect(() => authenticationConfiguration({ ...third, userPrefix: 'corp:', groupPrefix: 'x:' })).toThrow(
        '"corp:" is taken',
      );
    });
  });

  it('takes each character of a group literally', () => {
    const group = 'a"] ? [] : ["b\\';
    const { jwt } = authenticationConfiguration({
      issuer: ISSUER,
      client: 'desk',
      managedGroups: [group],
    }) as unknown as Configuration;
    expect(jwt[0].claimMappings.groups.expression).toContain(String.raw`g in ["a\"] ? [] : [\"b\\"])`);
  });
});
