import * as fc from 'fast-check';
import { expect, test } from 'vitest';
import { natLayout } from '../../../test/fixtures/natlayout.ts';
import type { NamespaceAttachment } from './attachments.ts';
import { chooseNamespaceAddress, namespaceDevice } from './layout.ts';
import { type Inside, insideCommands, planNamespaces } from './namespaces.ts';
import type { Link, Route } from './devices.ts';

const layout = natLayout({
  subnet: '10.213.0.0/20',
  probeSubnet: '198.18.213.0/24',
  connectionsPerGuest: 100,
});
const { gateway } = layout.namespaces;

function attachments(uids: readonly string[]): NamespaceAttachment[] {
  const taken = new Set<string>();
  return uids.map((uid) => {
    const address = chooseNamespaceAddress(layout, uid, taken);
    taken.add(address);
    return { uid, address, device: namespaceDevice(layout, uid), exposedPort: 5555, ports: [] };
  });
}

const FRESH: Link = {
  index: 0,
  peer: undefined,
  kind: 'veth',
  up: false,
  master: undefined,
  isolated: false,
  addresses: [],
  ipv6: false,
  carrier: false,
};

type Repair = ReturnType<typeof planNamespaces>[number];

interface MutableInside extends Omit<Inside, 'links' | 'routes'> {
  links: Map<string, Link>;
  routes: Route[];
}

/** Model of a host. The model applies repairs as the kernel does. */
class Host {
  readonly links = new Map<string, Link>();
  readonly files = new Map<string, MutableInside | undefined>();
  readonly unreadable = new Map<string, string>();
  routes: Route[] = [];
  #index = 100;

  plan(wanted: readonly NamespaceAttachment[]): Repair[] {
    const { files, unreadable, routes } = this;
    return planNamespaces(layout, wanted, this.links, { files, unreadable, routes });
  }

  perform(repair: Repair): void {
    const { device } = repair;
    switch (repair.kind) {
      case 'createNamespace':
        this.files.set(device, emptyNamespace());
        return;
      case 'removeNamespace':
        this.files.delete(device);
        return;
      case 'disableIPv6':
        this.links.set(device, { ...existing(this.links, device), ipv6: false });
        return;
      case 'configureOutside':
        this.links.set(device, { ...existing(this.links, device), up: true, addresses: [`${gateway}/32`] });
        this.routes.push({ dst: repair.address, dev: device });
        return;
      default:
        this.#performInside(repair);
    }
  }

  #performInside(repair: Repair): void {
    const { device } = repair;
    const inside = this.files.get(device);
    if (inside === undefined) {
      throw new Error(`${device} has no namespace`);
    }
    switch (repair.kind) {
      case 'createPair':
        this.#connect(device, inside);
        return;
      case 'configureInside': {
        const own = { up: true, ipv6: false, addresses: [`${repair.address}/32`] };
        inside.links.set('lo', { ...existing(inside.links, 'lo'), up: true });
        inside.links.set(device, { ...existing(inside.links, device), ...own });
        inside.leadsToLoopback = true;
        inside.routes = [
          { dst: gateway, dev: device },
          { dst: 'default', gateway, dev: device },
        ];
        return;
      }
      case 'loadInsideRules':
        inside.rulesCurrent = true;
        return;
      default:
        throw new Error(`${repair.kind} is no repair of a namespace`);
    }
  }

  #connect(device: string, inside: MutableInside): void {
    const [outer, inner] = [this.#index++, this.#index++];
    this.links.set(device, { ...FRESH, index: outer, peer: inner, ipv6: true });
    inside.links.set(device, { ...FRESH, index: inner, peer: outer });
    inside.leadsToLoopback = false;
    inside.routes = [];
    this.routes = this.routes.filter(({ dev }) => dev !== device);
  }
}

function existing(links: ReadonlyMap<string, Link>, name: string): Link {
  const link = links.get(name);
  if (link === undefined) {
    throw new Error(`${name} does not exist`);
  }
  return link;
}

function emptyNamespace(): MutableInside {
  const lo: Link = { ...FRESH, kind: '' };
  return { links: new Map([['lo', lo]]), routes: [], leadsToLoopback: false, rulesCurrent: false };
}

function converge(host: Host, wanted: readonly NamespaceAttachment[]): Repair[] {
  const done: Repair[] = [];
  for (let round = 0; round < 3; round++) {
    const repairs = host.plan(wanted);
    if (repairs.length === 0) {
      return done;
    }
    for (const repair of repairs) {
      host.perform(repair);
    }
    done.push(...repairs);
  }
  throw new Error('does not converge');
}

const link = fc.record<Link>({
  index: fc.integer({ min: 1, max: 3 }),
  peer: fc.option(fc.integer({ min: 1, max: 3 }), { nil: undefined }),
  kind: fc.constant('veth'),
  up: fc.boolean(),
  master: fc.constant(undefined),
  isolated: fc.constant(false),
  addresses: fc.subarray([`${gateway}/32`, '198.18.213.20/32', '10.0.0.1/8']),
  ipv6: fc.boolean(),
  carrier: fc.boolean(),
});

/**
 * Returns any state of a host and its namespaces. Each part is missing or in any condition, and there may be parts of removed namespaces.
 */
function anyHost(wanted: readonly NamespaceAttachment[]): fc.Arbitrary<Host> {
  const devices = [...wanted.map(({ device }) => device), namespaceDevice(layout, 'long gone')];
  const each = devices.map((device) => {
    const routes = fc.subarray<Route>([
      { dst: gateway, dev: device },
      { dst: 'default', gateway, dev: device },
      { dst: 'default', gateway: '10.0.0.1', dev: device },
    ]);
    const inside = fc.record({
      links: fc
        .tuple(link, fc.option(link, { nil: undefined }))
        .map(([lo, eth]) => new Map([['lo', lo], ...(eth ? [[device, eth] as const] : [])])),
      routes,
      leadsToLoopback: fc.boolean(),
      rulesCurrent: fc.boolean(),
    });
    return fc.tuple(
      fc.constantFrom('none', 'file', 'namespace'),
      inside,
      fc.option(link, { nil: undefined }),
      fc.boolean(),
    );
  });
  return fc.tuple(...each).map((states) => {
    const host = new Host();
    for (const [index, [file, inside, outer, isRouted]] of states.entries()) {
      const device = devices[index] ?? '';
      if (file !== 'none') {
        host.files.set(device, file === 'namespace' ? inside : undefined);
      }
      // Devices of unknown programs are removed by plan.ts.
      if (outer && index < wanted.length) {
        host.links.set(device, outer);
        const dst = wanted[index]?.address ?? '';
        host.routes.push(...(isRouted ? [{ dst, dev: device }] : []));
      }
    }
    return host;
  });
}

const scenario = fc
  .uniqueArray(fc.uuid(), { maxLength: 4, size: 'max' })
  .map(attachments)
  .chain((wanted) => fc.tuple(fc.constant(wanted), anyHost(wanted)));

test('from any state the repairs end in connected namespaces and nothing else, and then there is nothing to repair', () => {
  fc.assert(
    fc.property(scenario, ([wanted, host]) => {
      converge(host, wanted);
      expect([...host.files.keys()].sort()).toEqual(wanted.map(({ device }) => device).sort());
      for (const { device, address } of wanted) {
        const [outer, inside] = [host.links.get(device), host.files.get(device)];
        const inner = inside?.links.get(device);
        expect(outer).toMatchObject({ up: true, ipv6: false, peer: inner?.index });
        expect(inner).toMatchObject({ up: true, ipv6: false, peer: outer?.index });
        expect(outer?.addresses).toContain(`${gateway}/32`);
        expect(inner?.addresses).toContain(`${address}/32`);
        expect(inside).toMatchObject({ leadsToLoopback: true, rulesCurrent: true });
        expect(inside?.links.get('lo')?.up).toBe(true);
        expect(host.routes).toContainEqual({ dst: address, dev: device });
      }
    }),
    { numRuns: 500 },
  );
});

test('a namespace that is as it should be is not touched, whatever is repaired beside it', () => {
  fc.assert(
    fc.property(scenario, ([wanted, host]) => {
      const [kept] = attachments(['kept']);
      fc.pre(kept !== undefined && wanted.every(({ address }) => address !== kept.address));
      converge(host, kept ? [kept] : []);
      const done = converge(host, kept ? [...wanted, kept] : []);
      expect(done.filter(({ device }) => device === kept?.device)).toEqual([]);
    }),
    { numRuns: 200 },
  );
});

test('a namespace that could not be read is left as it is, because a program may use it', () => {
  const [one] = attachments(['unread']);
  const host = new Host();
  host.unreadable.set(one?.device ?? '', 'it could not be read');
  expect(host.plan(one ? [one] : [])).toEqual([]);
});

test('names fit the kernel, addresses are within their range and never twice, and both stay the same for the same program', () => {
  fc.assert(
    fc.property(fc.uniqueArray(fc.uuid(), { minLength: 1, maxLength: 112, size: 'max' }), (uids) => {
      const all = attachments(uids);
      expect(new Set(all.map(({ address }) => address)).size).toBe(uids.length);
      for (const { address, device } of all) {
        expect(device).toMatch(/^bn[0-9a-f]{12}$/);
        const number = Number(/^198\.18\.213\.(\d+)$/.exec(address)?.[1]);
        expect(number).toBeGreaterThanOrEqual(16);
        expect(number).toBeLessThan(128);
      }
      expect(attachments(uids.slice(0, 1))[0]).toEqual(all[0]);
    }),
  );
  const full = attachments(Array.from({ length: 112 }, (_none, index) => `program ${index}`));
  const taken = new Set(full.map(({ address }) => address));
  expect(() => chooseNamespaceAddress(layout, 'another', taken)).toThrow('The 112 addresses');
});

test('a namespace is connected in one round of repairs', () => {
  const [one] = attachments(['one']);
  const wanted = one ? [one] : [];
  const host = new Host();
  for (const repair of host.plan(wanted)) {
    host.perform(repair);
  }
  expect(host.plan(wanted)).toEqual([]);
});

test('no command inside names a device but loopback and its own', () => {
  const [one] = attachments(['one']);
  const { device = '', address = '' } = one ?? {};
  const commands = insideCommands(layout, { device, address });
  expect(commands).toContain(`link set ${device} up`);
  const named = commands.flatMap((command) => command.match(/(?<=\b(?:dev|link set) )\S+/g) ?? ['none']);
  expect(named).toHaveLength(commands.length);
  expect(new Set(named)).toEqual(new Set(['lo', device]));
});
