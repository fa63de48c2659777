/** Routes for the hosts of a namespace. The server reads and changes Nodes with its own identity, because Nodes belong to no namespace. */
import { changeTag, dedicate } from '../actions/nodes.ts';
import { ADMINS, inNamespace, MEMBERS, OWNERS } from './own/rights.ts';
import * as z from 'zod';
import { nodeListSchema, nodeNamespaceSchema, nodeTagSchema } from '../api/http/node.ts';
import { nodeItem } from '../api/http/host.ts';
import { statusSchema, success } from '../api/http/status.ts';
import type { Node } from '../kube/core.ts';
import type { App } from './http/app.ts';
import { invalidField } from './http/errors.ts';
import { namespaceParams } from './http/namespaces.ts';
import { isServedNamespace } from '../api/v1alpha1/names.ts';
import type { Services } from './services.ts';
import { SAMPLE } from './http/samples.ts';

const NODES_PATH = '/api/v1/namespaces/:namespace/nodes';
const tags = ['Nodes'];
const nodeParams = namespaceParams.extend({
  node: z
    .string()
    .min(1)
    .max(253)
    .meta({ description: 'Name of the host.', examples: [SAMPLE.host] }),
});

export function addNodeRoutes(app: App, services: Services): void {
  addList(app, services);
  addTags(app, services);
  addNamespace(app, services);
}

function addList(app: App, { own: { rights, hosts, watches } }: Services): void {
  app.get(
    NODES_PATH,
    {
      schema: {
        summary:
          'List the hosts that VMs of a namespace can run on: its own and, unless it is dedicated to them, the shared ones',
        description:
          'Each item has the free and the total resources of a host, its tags and its versions. A host that takes no VMs has a reason and a message.',
        roles: MEMBERS,
        tags,
        params: namespaceParams,
        response: { 200: nodeListSchema },
      },
    },
    async ({ headers, params: { namespace } }) => {
      await rights.require(headers, { verb: 'list', resource: 'hosts', namespace });
      const itemOf = (node: Readonly<Node>) =>
        nodeItem(node, watches.podsOn(node.metadata.name), hosts.namespaceOf(node));
      return { items: hosts.of(namespace).map(itemOf) };
    },
  );
}

function addTags(app: App, { own: { hosts, client } }: Services): void {
  const requireHost = hosts.requireHost.bind(hosts);
  for (const [action, summary, isSet] of [
    ['tag', 'Add a tag to a host. A host can have at most 64 tags', true],
    [
      'untag',
      'Remove a tag from a host. If the configuration of the host has the tag, its agent adds the tag again',
      false,
    ],
  ] as const) {
    app.post(
      `${NODES_PATH}/:node/${action}`,
      {
        config: { right: inNamespace({ verb: 'update', resource: 'hosts', subresource: 'tags' }) },
        schema: {
          summary,
          description:
            'VMs can ask for hosts with a tag. Tags of a shared host are changed in the default namespace.',
          roles: ADMINS,
          sample: { tag: 'fast' },
          tags,
          params: nodeParams,
          body: nodeTagSchema,
          response: { 200: statusSchema },
        },
      },
      async ({ params: { namespace, node }, body }) => {
        const { name: host } = hosts.find(namespace, node).metadata;
        const tag = body.tag ?? body.tags?.[0] ?? '';
        await changeTag({ client, requireHost }, { namespace, host, tag, isSet });
        return success();
      },
    );
  }
}

function addNamespace(app: App, { own: { hosts, client }, config }: Services): void {
  const { default: defaultNamespace, prefix, system } = config.namespaces;
  const access = { client, defaultNamespace, requireHost: hosts.requireHost.bind(hosts) };
  app.post(
    `${NODES_PATH}/:node/namespace`,
    {
      config: { right: () => ({ verb: 'update', resource: 'hosts', subresource: 'namespace' }) },
      schema: {
        summary: 'Move a host to another namespace. The request is refused if VMs run on the host',
        description:
          'After that, only VMs of the new namespace run on the host. To share the host again, name the default namespace.',
        roles: OWNERS,
        sample: { namespace: SAMPLE.namespace },
        tags,
        params: nodeParams,
        body: nodeNamespaceSchema,
        response: { 200: statusSchema },
      },
    },
    async ({ params: { namespace, node }, body }) => {
      const { name } = hosts.find(namespace, node).metadata;
      const target = body.namespace;
      if (!isServedNamespace(target, config.namespaces)) {
        const rule = `must be ${defaultNamespace} or begin with ${prefix}, and must not be ${system}`;
        throw invalidField('namespace', rule);
      }
      hosts.requireTarget(target);
      await dedicate(access, { host: name, from: namespace, to: target });
      return success();
    },
  );
}
