// Image files as tensors: drawn by the browser, so that whatever it can show can be sent.

const LARGEST = 2048;
const MEAN = [0.485, 0.456, 0.406];
const DEVIATION = [0.229, 0.224, 0.225];

/** How values of a pixel may be scaled, by name. */
export const SCALES = {
  bytes: { label: "0 … 255", apply: (value) => value },
  unit: { label: "0 … 1", apply: (value) => value / 255 },
  signed: { label: "−1 … 1", apply: (value) => value / 127.5 - 1 },
  imagenet: { label: "ImageNet mean and deviation", apply: (value, channel) => (value / 255 - MEAN[channel % 3]) / DEVIATION[channel % 3] },
};

/** Where height, width and channels are in *dims*, which have no batch; null where they are no image's. */
export function imageLayout(dims) {
  const isChannels = (dim) => dim === 1 || dim === 3 || dim === 4;
  const isSide = (dim) => dim < 0 || dim >= 8;
  if (dims.length !== 3) return null;
  if (isChannels(dims[2]) && isSide(dims[0]) && isSide(dims[1])) return { height: dims[0], width: dims[1], channels: dims[2], order: "HWC" };
  if (isChannels(dims[0]) && isSide(dims[1]) && isSide(dims[2])) return { height: dims[1], width: dims[2], channels: dims[0], order: "CHW" };
  return null;
}

/** *file*, drawn on *canvas* in the size that *layout* asks for. Raises Error for what is no image. */
export async function draw(file, layout, canvas) {
  let picture;
  try {
    picture = await createImageBitmap(file);
  } catch {
    throw new Error(`${file.name} is no image that this browser can read`);
  }
  const shrink = Math.min(1, LARGEST / Math.max(picture.width, picture.height));
  canvas.width = layout.width > 0 ? layout.width : Math.round(picture.width * shrink);
  canvas.height = layout.height > 0 ? layout.height : Math.round(picture.height * shrink);
  canvas.getContext("2d", { willReadFrequently: true }).drawImage(picture, 0, 0, canvas.width, canvas.height);
  picture.close();
}

/** The elements of what is on *canvas*, in the order of *layout*, and their shape. */
export function elementsOf(canvas, layout, scale) {
  const { width, height } = canvas;
  const pixels = canvas.getContext("2d").getImageData(0, 0, width, height).data;
  const { channels, order } = layout;
  const apply = SCALES[scale].apply;
  const value = (pixel, channel) => {
    const at = pixel * 4;
    if (channels === 1) return apply(Math.round(0.299 * pixels[at] + 0.587 * pixels[at + 1] + 0.114 * pixels[at + 2]), 0);
    return apply(pixels[at + channel], channel);
  };
  const count = width * height;
  const elements = new Array(count * channels);
  let at = 0;
  if (order === "HWC") {
    for (let pixel = 0; pixel < count; pixel += 1) for (let channel = 0; channel < channels; channel += 1) elements[at++] = value(pixel, channel);
  } else {
    for (let channel = 0; channel < channels; channel += 1) for (let pixel = 0; pixel < count; pixel += 1) elements[at++] = value(pixel, channel);
  }
  return { elements, dims: order === "HWC" ? [height, width, channels] : [channels, height, width] };
}

/** A canvas with an output that has the shape of an image of bytes; null where it has not. */
export function picture(datatype, shape, elements) {
  const dims = shape.length === 4 && shape[0] === 1 ? shape.slice(1) : shape;
  const layout = imageLayout(dims);
  if (datatype !== "UINT8" || !layout || layout.width * layout.height > LARGEST * LARGEST) return null;
  const canvas = document.createElement("canvas");
  canvas.width = layout.width;
  canvas.height = layout.height;
  const context = canvas.getContext("2d");
  const image = context.createImageData(layout.width, layout.height);
  const count = layout.width * layout.height;
  for (let pixel = 0; pixel < count; pixel += 1) {
    for (let channel = 0; channel < 4; channel += 1) {
      const from = layout.channels === 1 ? 0 : channel;
      const at = layout.order === "HWC" ? pixel * layout.channels + from : from * count + pixel;
      image.data[pixel * 4 + channel] = channel === 3 && layout.channels < 4 ? 255 : elements[at];
    }
  }
  context.putImageData(image, 0, 0);
  return canvas;
}
