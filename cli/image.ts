/** The nouns `image` and `iso`. */
import { type Command, Option } from 'commander';
import { parseDiskSize, wholeNumber } from './flags.ts';
import type { Globals } from './globals.ts';
import {
  addFileFlag,
  createdSentence,
  createFromFile,
  createNamed,
  type FileFlag,
  fileIn,
  inFlags,
} from './objects/create.ts';
import { addCommonVerbs } from './objects/verbs.ts';
import type { Terminal } from './terminal.ts';
import { setDescription } from '../actions/objects.ts';
import type { ImageItem } from '../api/http/image.ts';
import { notReadyReason } from '../api/http/conditions.ts';
import { contentSpec, copySpec, imageItem, type StoredContent } from '../api/http/imageitem.ts';
import { VM_FIELDS } from '../api/v1alpha1/fields.ts';
import {
  IMAGE_FIELD_ROWS,
  IMAGE_FORMATS,
  type ImageFieldPath,
  SOURCE_FIELDS,
} from '../api/v1alpha1/imagefields.ts';
import { formatSize } from '../api/v1alpha1/quantity.ts';
import { IMAGES, ISOS } from '../api/v1alpha1/resources.ts';
import { type NounKind, report } from './objects/kind.ts';
import { type Column, print } from './output.ts';
import { isObjectName, NEW_IMAGE_NAME_LENGTH } from '../api/v1alpha1/names.ts';
import { CommandError, EXIT } from './errors.ts';
import { type UserCluster, withCluster } from './cluster.ts';
import { findNamed, getNamed } from './objects/named.ts';

export function addImageCommands(noun: Command, terminal: Terminal): void {
  addCommonVerbs(noun, terminal, IMAGE_KIND);
  addCreate(noun, terminal, IMAGE_KIND);
  noun
    .command('generate')
    .description('Make an image with an empty disk, for the installation of an operating system')
    .argument('<name>', 'name of the new image')
    .argument(
      '<size>',
      'size of the disk, for example 120G or 100Gi; a number without a unit is in GB',
      parseDiskSize,
    )
    .option('-d, --description <text>', 'description of the image')
    .action(async (name: string, size: string, flags: DescriptionFlag, command: Command) => {
      const globals = command.optsWithGlobals<Globals>();
      await create(terminal, globals, IMAGE_KIND, { name, flags: { ...flags, size } });
    });
  addChangeVerbs(noun, terminal, IMAGE_KIND);
}

export function addISOCommands(noun: Command, terminal: Terminal): void {
  addCommonVerbs(noun, terminal, ISO_KIND);
  addCreate(noun, terminal, ISO_KIND);
  addChangeVerbs(noun, terminal, ISO_KIND);
}

/** Returns the word for one object in sentences. */
function wordFor({ noun }: typeof IMAGE_KIND): string {
  return noun === 'image' ? 'image' : 'ISO';
}

interface DescriptionFlag {
  readonly description?: string;
}

/** Adds the verbs that copy or change an image or ISO. */
function addChangeVerbs(noun: Command, terminal: Terminal, kind: typeof IMAGE_KIND): void {
  const word = wordFor(kind);
  noun
    .command('copy')
    .description(`Copy an ${word}, and do not wait for the content of the copy`)
    .argument('<name>', `name of the ${word}`)
    .argument('<copy>', 'name of the copy')
    .option('-d, --description <text>', 'description of the copy (default: that of the original)')
    .action(async (copyOf: string, name: string, flags: DescriptionFlag, command: Command) => {
      const globals = command.optsWithGlobals<Globals>();
      await create(terminal, globals, kind, { name, flags: { ...flags, copyOf } });
    });
  noun
    .command('set-description')
    .description(`Set the description of an ${word}`)
    .argument('<name>', `name of the ${word}`)
    .argument('<text>', 'new description; an empty text removes the description')
    .action(async (name: string, text: string, _flags: object, command: Command) => {
      await describe(terminal, command.optsWithGlobals<Globals>(), kind, { name, text });
    });
}

/** Sets the description. @throws CommandError when the namespace does not have the object; ApiError. */
async function describe(
  terminal: Terminal,
  globals: Globals,
  kind: typeof IMAGE_KIND,
  { name, text }: { readonly name: string; readonly text: string },
): Promise<void> {
  await withCluster(terminal, globals, async (cluster) => {
    const { metadata } = await getNamed(cluster, kind, name, terminal.signal);
    const ref = { namespace: cluster.namespace, name: metadata.name };
    const changed = await setDescription(cluster.client, kind.type, ref, text).catch((error: unknown) =>
      Promise.reject(inFlags(error, { 'spec.description': 'the description' })),
    );
    const sentence = () => `Successfully set the description of ${kind.noun} ${name}`;
    await report(terminal, globals, { kind, objects: [changed], sentence });
  });
}

/**
 * Adds the verbs of `remote-image` and `remote-iso`, which scripts for another platform call. There, a remote storage has images that the
 * cluster cannot use yet. Here, registries have them.
 */
export function addRemoteCommands(
  noun: Command,
  terminal: Terminal,
  { plural, noun: local }: typeof IMAGE_KIND,
): void {
  const instead = `Make an object for content in a registry: ${terminal.name} ${local} create NAME --reference REFERENCE`;
  noun
    .command('list')
    .alias('ls')
    .description(`List remote ${plural}`)
    .argument('[names...]', `names of the remote ${plural} to list (default: all)`)
    .action(async (_names: string[], _flags, command: Command) => {
      await print(terminal, command.optsWithGlobals<Globals>().output, {
        rows: [],
        columns: [],
        itemOf: (row) => row,
        none: `There are no remote ${plural}. ${instead}`,
      });
    });
  noun
    .command('pull')
    .description(`Copy a remote ${local} (not supported)`)
    .argument('<name>', `name of the remote ${local}`)
    .argument('[copy]', 'name of the copy')
    .option('-d, --description <text>', 'description of the copy')
    .action(() => {
      throw new CommandError(`There is no storage with remote ${plural}. ${instead}`, EXIT.usage);
    });
}

function addCreate(noun: Command, terminal: Terminal, kind: typeof IMAGE_KIND): void {
  const word = wordFor(kind);
  const command = addFileFlag(noun.command('create'))
    .description(`Make an ${word}, or all ${word}s that a file describes, and do not wait for their content`)
    .argument('[name]', `name of the ${word}`)
    .option('--copy-of <name>', `copy another ${word}`);
  for (const { option } of tableFlags(kind)) {
    command.addOption(option);
  }
  command.action(async (name: string | undefined, flags: CreateFlags, created: Command) => {
    await create(terminal, created.optsWithGlobals<Globals>(), kind, { name, flags });
  });
}

/** Readers of the flags that are not texts, by their fields. */
const PARSERS: Partial<Record<ImageFieldPath, (text: string) => unknown>> = {
  'source.empty.size': parseDiskSize,
  ttlSecondsAfterFinished: wholeNumber,
};
const CHOICES: Partial<Record<ImageFieldPath, readonly string[]>> = {
  architecture: VM_FIELDS.architecture.values,
  os: VM_FIELDS.os.values,
  format: IMAGE_FORMATS,
};

/** Returns the flags of the table that the kind has, with the name of the field in requests of the HTTP API. */
function tableFlags({ noun }: NounKind<StoredContent>): { option: Option; http: string; path: string }[] {
  return IMAGE_FIELD_ROWS.flatMap(({ path, http, flag, isImageOnly }) => {
    if (flag === undefined || http === undefined || (isImageOnly === true && noun !== 'image')) {
      return [];
    }
    const option = new Option(...flag);
    const [choices, parser] = [CHOICES[path], PARSERS[path]];
    if (choices !== undefined) {
      option.choices(choices);
    } else if (parser !== undefined) {
      option.argParser(parser);
    }
    return [{ option, http, path }];
  });
}

const COLUMNS: readonly Column<StoredContent>[] = [
  ofItem('NAME', ({ name }) => name),
  ofItem('TYPE', ({ type }) => type),
  ofItem('STATE', ({ state }) => state),
  { header: 'REASON', value: notReadyReason },
  ofItem('SIZE', ({ size }) => formatSize(size)),
  ofItem('DESCRIPTION', ({ description }) => description),
  ofItem('MESSAGE', ({ errorMessage }) => errorMessage),
  { ...ofItem('NAMESPACE', ({ namespace }) => namespace), isWide: true },
  { ...ofItem('PROGRESS', ({ progressPercent: percent }) => percent && `${percent} %`), isWide: true },
  { ...ofItem('STORAGE', ({ storageSize }) => formatSize(storageSize)), isWide: true },
  { ...ofItem('UPDATED', ({ lastUpdatedTimestamp }) => lastUpdatedTimestamp), isWide: true },
];
const COMMON = { columns: COLUMNS, itemOf: imageItem, isShared: true };
export const IMAGE_KIND: NounKind<StoredContent> = {
  ...COMMON,
  columns: [...COLUMNS, { ...ofItem('MEMORY', ({ memorySize }) => formatSize(memorySize)), isWide: true }],
  type: IMAGES,
  noun: 'image',
  plural: 'images',
};
export const ISO_KIND: NounKind<StoredContent> = { ...COMMON, type: ISOS, noun: 'iso', plural: 'ISOs' };

function ofItem(
  header: string,
  value: (item: ImageItem) => string | number | undefined,
): Column<StoredContent> {
  return { header, value: (image) => value(imageItem(image)) };
}

/** Checks the name by the rule of the HTTP API. @throws CommandError when the name is not allowed for an image. */
export function checkImageName(name: string): void {
  if (!isObjectName(name) || name.length > NEW_IMAGE_NAME_LENGTH) {
    throw new CommandError(
      `The name ${JSON.stringify(name)} is not allowed for an image. A name must have at most ${NEW_IMAGE_NAME_LENGTH} characters: lower-case letters, digits, dashes and dots`,
      EXIT.usage,
    );
  }
}

/** Flags of `create`. Most flags are those of the table. */
export interface CreateFlags extends FileFlag {
  readonly copyOf?: string;
  readonly description?: string;
  readonly [flag: string]: unknown;
}

/** Flags that name the source, as commander names them. */
const SOURCE_FLAGS = ['copyOf', ...SOURCE_FIELDS] as const;

/**
 * Creates one object from flags, or all objects of a file.
 *
 * @throws CommandError when flags contradict each other, or when the source of a copy is missing; ApiError.
 */
export async function create(
  terminal: Terminal,
  globals: Globals,
  kind: NounKind<StoredContent>,
  { name, flags }: { name: string | undefined; flags: CreateFlags },
): Promise<void> {
  const file = fileIn(name, flags);
  if (file !== undefined) {
    await createFromFile(terminal, globals, kind, file);
    return;
  }
  check(name, kind, flags);
  await withCluster(terminal, globals, async (cluster) => {
    const { signal } = terminal;
    const metadata = { name, namespace: cluster.namespace };
    const spec = await specOf(cluster, kind, flags, signal);
    const made = createNamed(cluster, kind.type, { metadata, spec }, { signal });
    const objects = [await made.catch((error: unknown) => Promise.reject(inFlags(error, flagByField(kind))))];
    await report(terminal, globals, { kind, objects, sentence: createdSentence(kind) });
  });
}

/** Returns the names of the flags in messages, by the fields of the object. */
function flagByField(kind: NounKind<StoredContent>): Record<string, string> {
  const flags = tableFlags(kind).map(({ path, option }) => [`spec.${path}`, option.long ?? '']);
  return { 'metadata.name': 'the name', ...Object.fromEntries(flags) } as Record<string, string>;
}

/** @throws CommandError when the name is not allowed, or flags contradict each other. */
function check(
  name: string | undefined,
  kind: NounKind<StoredContent>,
  flags: CreateFlags,
): asserts name is string {
  const { noun } = kind;
  if (name === undefined) {
    throw new CommandError(`Give the name of the ${noun}, or a file with -f`, EXIT.usage);
  }
  checkImageName(name);
  const { copyOf, url, sha256 } = flags;
  const given = SOURCE_FLAGS.filter((flag) => flags[flag] !== undefined);
  if (given.length !== 1) {
    const empty = noun === 'image' ? '--size, ' : '';
    throw new CommandError(
      `Name one source: ${empty}--copy-of, --reference, --url or --shared-file`,
      EXIT.usage,
    );
  }
  if ((url === undefined) !== (sha256 === undefined)) {
    throw new CommandError('Use --url and --sha256 together', EXIT.usage);
  }
  const other = tableFlags(kind).find(
    ({ option, http }) => http !== 'description' && flags[option.attributeName()] !== undefined,
  );
  if (copyOf !== undefined && other !== undefined) {
    throw new CommandError(
      `Do not use ${other.option.long} with --copy-of, because a copy has the values of its source`,
      EXIT.usage,
    );
  }
}

async function specOf(
  cluster: UserCluster,
  kind: NounKind<StoredContent>,
  flags: CreateFlags,
  signal: AbortSignal,
): Promise<StoredContent['spec']> {
  const { copyOf, description } = flags;
  if (copyOf !== undefined) {
    const source = await findNamed(cluster, kind, copyOf, signal);
    return copySpec(source, cluster.namespace, description);
  }
  return contentSpec(
    Object.fromEntries(tableFlags(kind).map(({ option, http }) => [http, flags[option.attributeName()]])),
  );
}
