/** Transfers of image files through the server, and images of a former remote storage. The server offers none of them. */
import { imageListSchema } from '../../api/http/image.ts';
import { statusSchema } from '../../api/http/status.ts';
import { listAs } from '../callers/list.ts';
import type { App } from '../http/app.ts';
import { StatusError } from '../http/errors.ts';
import { namespaceParams, objectParams } from '../http/params.ts';
import { IMAGES } from '../resources.ts';

const NAMESPACE = '/api/v1/namespaces/:namespace';
const NO_FILES =
  'The server transfers no image files. Name a file of a web server or an image of a registry in the source of an Image or ISO';
const NO_REMOTE =
  'There are no remote images. Name an OCI reference as the image, or add the reference to the image cache';

export function addTransferRoutes(app: App): void {
  app.get(
    `${NAMESPACE}/remoteimages`,
    {
      schema: {
        summary: 'List remote images: always none',
        tags: ['Images'],
        params: namespaceParams,
        response: { 200: imageListSchema },
      },
    },
    async ({ caller, params }) => {
      // A caller who may not list the images of the namespace gets the refusal of the API server.
      await listAs(caller(), IMAGES, { ...params, limit: 1 }, ({ metadata }) => metadata.name);
      return { items: [] };
    },
  );
  for (const [one, tag] of [
    ['image', 'Images'],
    ['iso', 'ISOs'],
  ] as const) {
    const object = { params: objectParams, tags: [tag] };
    const upload = { params: namespaceParams, tags: [tag] };
    refuse(app, 'GET', `/${one}s/:name/download`, { ...object, summary: 'Not offered', message: NO_FILES });
    refuse(app, 'POST', `/upload/${one}`, { ...upload, summary: 'Not offered', message: NO_FILES });
    refuse(app, 'POST', `/remote${one}s/:name/pull`, {
      ...object,
      summary: 'Not offered',
      message: NO_REMOTE,
    });
  }
}

interface Refusal {
  readonly params: typeof namespaceParams | typeof objectParams;
  readonly tags: string[];
  readonly summary: string;
  readonly message: string;
}

/** Adds a route that answers 501. It answers before it reads the body, because the body of an upload is a whole disk. */
function refuse(app: App, method: 'GET' | 'POST', path: string, { message, ...schema }: Refusal): void {
  const answer = () => {
    throw new StatusError(501, message);
  };
  app.route({
    method,
    url: `${NAMESPACE}${path}`,
    schema: { ...schema, response: { 501: statusSchema } },
    onRequest: answer,
    handler: answer,
  });
}
