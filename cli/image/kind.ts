/** Defines the columns of tables with Images and ISOs, and the names of the kinds in messages. */
import type { ImageItem } from '../../api/http/image.ts';
import { imageItem, type Stored } from '../../api/http/imageitem.ts';
import { IMAGES, ISOS } from '../../api/v1alpha1/resources.ts';
import type { Kind } from '../objects/kind.ts';
import type { Column } from '../output.ts';

const COLUMNS: readonly Column<Stored>[] = [
  ofItem('NAME', ({ name }) => name),
  ofItem('TYPE', ({ type }) => type),
  ofItem('STATE', ({ state }) => state),
  ofItem('SIZE', ({ size }) => size),
  ofItem('DESCRIPTION', ({ description }) => description),
  { ...ofItem('NAMESPACE', ({ namespace }) => namespace), isWide: true },
  { ...ofItem('PROGRESS', ({ progressPercent: percent }) => percent && `${percent} %`), isWide: true },
  { ...ofItem('STORAGE', ({ storageSize }) => storageSize), isWide: true },
  { ...ofItem('UPDATED', ({ lastUpdatedTimestamp }) => lastUpdatedTimestamp), isWide: true },
  { ...ofItem('MESSAGE', ({ errorMessage }) => errorMessage), isWide: true },
];
const COMMON = { columns: COLUMNS, itemOf: imageItem, isShared: true };
export const IMAGE_KIND: Kind<Stored> = { ...COMMON, type: IMAGES, noun: 'image', plural: 'images' };
export const ISO_KIND: Kind<Stored> = { ...COMMON, type: ISOS, noun: 'iso', plural: 'ISOs' };

function ofItem(header: string, value: (item: ImageItem) => string | number | undefined): Column<Stored> {
  return { header, value: (image) => value(imageItem(image)) };
}
