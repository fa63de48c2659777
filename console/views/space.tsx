/** Empty space in the place of rows that are not in the page. */
interface SpaceProps {
  /** Height in pixels. */
  readonly height: number;
}

export function Space({ height }: SpaceProps) {
  return height === 0 ? null : (
    <tr aria-hidden="true" class="space">
      <td style={{ height: `${height}px` }} />
    </tr>
  );
}
