/** Empty space in the place of rows that are not in the page. */
interface SpaceProps {
  /** Height in pixels. */
  readonly height: number;
  /** Number of columns of the table. */
  readonly columns: number;
}

export function Space({ height, columns }: SpaceProps) {
  return height === 0 ? null : (
    <tr aria-hidden="true" class="space">
      <td colSpan={columns} style={{ height: `${height}px` }} />
    </tr>
  );
}
