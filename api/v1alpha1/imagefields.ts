/**
 * The table of the fields of an Image's spec. An ISO has the same fields, except those with `isImageOnly`. Each field has one row, which says
 * where users of the HTTP API and of the command find it. The specs of new objects, the items of the HTTP API, the flags of the command and
 * the page of fields are made from these rows. This file imports no schema, because a schema would slow the start of the `berth` command.
 */

/** One row of the table. */
export interface ImageField {
  /** An ISO does not have the field. */
  readonly isImageOnly?: true;
  /** Name of the field in bodies that make an object with the HTTP API. The values there are the same. */
  readonly http?: string;
  /** The item of the HTTP API does not show the value of the spec under that name, because it has another value there. */
  readonly isNotShown?: true;
  /** Flag of `berth image create` and its text. The value is the same. */
  readonly flag?: readonly [flag: string, text: string];
  /**
   * For a field without `http` or `flag`: where users of that surface find it, or the reason why it is not there. The page of fields shows
   * these texts (docs/reference/fields.md).
   */
  readonly elsewhere?: { readonly http?: string; readonly flag?: string };
}

const NAMESPACE_CREDENTIALS = 'No: the registry credentials of the namespace are used';
const BOTH_NAMESPACES = 'No: the namespace of the request and the default namespace are searched';
const NOT_SUPPORTED = 'No: no host installs macOS yet';
const SAVE = { http: '`POST …/vms/{name}/save`', flag: '`berth vm save`' };
const COMMIT = { http: '`POST …/vms/{name}/commit`', flag: '`berth vm commit`' };
const PUSH = { http: '`POST …/vms/{name}/push`', flag: '`berth vm push`' };

/** The fields by their paths in the spec, in the order of the documentation. */
const IMAGE_FIELDS = {
  description: { http: 'description', isNotShown: true, flag: ['-d, --description <text>', 'description'] },
  'source.registry.reference': {
    http: 'reference',
    flag: ['--reference <reference>', 'take the content from a registry'],
  },
  'source.http.url': {
    http: 'url',
    flag: ['--url <url>', 'take the content from a web server; requires --sha256'],
  },
  'source.http.sha256': {
    http: 'sha256',
    flag: ['--sha256 <digest>', 'SHA-256 digest of the file at --url'],
  },
  'source.sharedFile.path': {
    http: 'sharedFile',
    flag: ['--shared-file <path>', 'take the content from a file in a folder that all hosts mount'],
  },
  'source.copyOf.name': { elsewhere: { http: '`POST …/images/{name}/copy`', flag: '`--copy-of`' } },
  'source.copyOf.namespace': { elsewhere: { http: BOTH_NAMESPACES, flag: BOTH_NAMESPACES } },
  'source.upload.maxSize': {
    elsewhere: { http: '`POST …/upload/image`', flag: 'No: a file is uploaded with the HTTP API' },
  },
  'source.empty.size': {
    isImageOnly: true,
    http: 'size',
    isNotShown: true,
    flag: [
      '--size <size>',
      'size of a new empty disk, for example 120G or 100Gi; a number without a unit is in GB',
    ],
  },
  'source.fromVM.name': { isImageOnly: true, elsewhere: SAVE },
  'source.fromVM.memory': { isImageOnly: true, elsewhere: SAVE },
  'source.fromVM.snapshot': { isImageOnly: true, elsewhere: SAVE },
  'source.ipsw.url': { isImageOnly: true, elsewhere: { http: NOT_SUPPORTED, flag: NOT_SUPPORTED } },
  'source.ipsw.sha256': { isImageOnly: true, elsewhere: { http: NOT_SUPPORTED, flag: NOT_SUPPORTED } },
  format: {
    isImageOnly: true,
    http: 'format',
    flag: ['--format <format>', 'format of the file (default: Auto)'],
  },
  architecture: {
    http: 'type',
    isNotShown: true,
    flag: ['--type <architecture>', 'architecture of the VMs'],
  },
  os: { http: 'os', flag: ['--os <system>', 'operating system of the VMs'] },
  'imagePullSecrets[].name': { elsewhere: { http: NAMESPACE_CREDENTIALS, flag: NAMESPACE_CREDENTIALS } },
  'commit.vmName': { isImageOnly: true, elsewhere: COMMIT },
  'commit.requestedAt': { isImageOnly: true, elsewhere: COMMIT },
  'push.reference': { isImageOnly: true, elsewhere: PUSH },
  'push.secretName': {
    isImageOnly: true,
    elsewhere: { http: NAMESPACE_CREDENTIALS, flag: NAMESPACE_CREDENTIALS },
  },
  'push.requestedAt': { isImageOnly: true, elsewhere: PUSH },
  'download.requestedAt': {
    elsewhere: { http: '`GET …/images/{name}/download`', flag: 'No: a file is downloaded with the HTTP API' },
  },
  ttlSecondsAfterFinished: {
    isImageOnly: true,
    http: 'ttlSecondsAfterFinished',
    flag: ['--ttl-seconds-after-finished <seconds>', 'seconds until the finished image is deleted'],
  },
} as const satisfies Readonly<Record<string, ImageField>>;

export type ImageFieldPath = keyof typeof IMAGE_FIELDS;

/** The rows of the table in their order, each with the path of its field. */
export const IMAGE_FIELD_ROWS: readonly (ImageField & { readonly path: ImageFieldPath })[] =
  Object.entries<ImageField>(IMAGE_FIELDS).map(([path, row]) => ({ ...row, path: path as ImageFieldPath }));

/** Formats of the file of an image. */
export const IMAGE_FORMATS = ['Auto', 'Raw', 'QCOW2'] as const;

/** Fields of a request that choose the source of the content. */
export const SOURCE_FIELDS = ['size', 'reference', 'url', 'sharedFile'] as const;
