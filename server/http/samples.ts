/**
 * Names in the samples of requests. The OpenAPI document shows the sample of each request as its example, so that a reader of the page can
 * send it to the demo (`make demo`).
 */
export const SAMPLE = {
  /** Objects of the demo. */
  namespace: 'platform-default',
  host: 'demo-host',
  vm: 'hello',
  image: 'demo-guest',
  /** The server chooses the names of pushes, so that no sample can know one. */
  push: 'vm-push-1',
  /** Only kubectl and the command make pools, so that no sample can make one. */
  pool: 'ci',
  /**
   * Names of objects that the samples make. Samples that read or change an object name one of the demo, or one of these. The samples delete
   * no other objects, so that a reader keeps the demo.
   */
  new: 'sample',
  saved: 'sample-saved',
  copy: 'sample-copy',
  newNamespace: 'platform-sample',
  user: 'ada@example.com',
  registry: 'https://registry.example',
  reference: 'registry.example/team/desktop:1',
} as const;

declare module 'fastify' {
  interface FastifySchema {
    /** Body that a caller can send. Each route with a body has one, and the OpenAPI document shows it as the example. */
    sample?: Readonly<Record<string, unknown>>;
  }
}
