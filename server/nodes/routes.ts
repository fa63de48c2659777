/** Hosts of a namespace. The server reads and changes Nodes itself, because they belong to no namespace. */
import * as z from 'zod';
import { nodeListSchema, nodeNamespaceSchema, nodeTagSchema } from '../../api/http/node.ts';
import { statusSchema, success } from '../../api/http/status.ts';
import { TAG_LABEL_PREFIX } from '../../api/v1alpha1/names.ts';
import { NODES } from '../../kube/core.ts';
import type { App } from '../http/app.ts';
import { invalidField } from '../http/errors.ts';
import { namespaceParams } from '../http/params.ts';
import type { Services } from '../services.ts';
import { dedicate } from './dedication.ts';
import { nodeItem } from './item.ts';

const NODES_PATH = '/api/v1/namespaces/:namespace/nodes';
const tags = ['Nodes'];
const nodeParams = namespaceParams.extend({ node: z.string().min(1).max(253) });

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
          'List the hosts of a namespace. Hosts that are not dedicated to a namespace are in the default namespace',
        tags,
        params: namespaceParams,
        response: { 200: nodeListSchema },
      },
    },
    async ({ headers, params: { namespace } }) => {
      await rights.require(headers, { verb: 'list', resource: 'hosts', namespace });
      const itemOf = (node: Parameters<typeof nodeItem>[0]) =>
        nodeItem(node, watches.podsOn(node.metadata.name), namespace);
      return { items: hosts.of(namespace).map(itemOf) };
    },
  );
}

function addTags(app: App, { own: { rights, hosts, client } }: Services): void {
  for (const [action, summary, value] of [
    ['tag', 'Add a tag to a host', ''],
    ['untag', 'Remove a tag from a host. A tag from the configuration of the host returns by itself', null],
  ] as const) {
    app.post(
      `${NODES_PATH}/:node/${action}`,
      {
        schema: {
          summary,
          tags,
          params: nodeParams,
          body: nodeTagSchema,
          response: { 200: statusSchema },
        },
      },
      async ({ headers, params: { namespace, node }, body }) => {
        await rights.require(headers, {
          verb: 'update',
          resource: 'hosts',
          subresource: 'tags',
          namespace,
        });
        const { name } = hosts.find(namespace, node).metadata;
        const tag = body.tag ?? body.tags?.[0] ?? '';
        await client.mergePatch(
          NODES,
          { name },
          { metadata: { labels: { [TAG_LABEL_PREFIX + tag]: value } } },
        );
        return success();
      },
    );
  }
}

function addNamespace(app: App, { own: { rights, hosts, client }, config }: Services): void {
  const { default: defaultNamespace, prefix } = config.namespaces;
  const dedicatedTo = (namespace: string) => (namespace === defaultNamespace ? undefined : namespace);
  app.post(
    `${NODES_PATH}/:node/namespace`,
    {
      schema: {
        summary: 'Give a host to another namespace. No VM may run on it',
        tags,
        params: nodeParams,
        body: nodeNamespaceSchema,
        response: { 200: statusSchema },
      },
    },
    async ({ headers, params: { namespace, node }, body }) => {
      await rights.require(headers, { verb: 'update', resource: 'hosts', subresource: 'namespace' });
      const { name } = hosts.find(namespace, node).metadata;
      const target = body.namespace;
      if (target !== defaultNamespace && !target.startsWith(prefix)) {
        throw invalidField('namespace', `must be ${defaultNamespace} or begin with ${prefix}`);
      }
      hosts.requireNamespace(target);
      if (target !== namespace) {
        await dedicate(client, { host: name, from: dedicatedTo(namespace), to: dedicatedTo(target) });
      }
      return success();
    },
  );
}
