"""ResNet in PyTorch under torchvision's names, from He et al. 2015 with the stride in the 3x3."""

import pytest

torch = pytest.importorskip("torch")
functional = torch.nn.functional

BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3)}


class BlurredConv(torch.nn.Conv2d):
  """A convolution of an image that is blurred first, as in FFCV's training script."""

  def forward(self, x):
    line = torch.tensor([1.0, 2.0, 1.0], dtype=x.dtype) / 4
    blur = torch.outer(line, line).expand(x.shape[1], 1, 3, 3)
    return super().forward(functional.conv2d(x, blur, padding=1, groups=x.shape[1]))


def make_conv(inputs, outputs, size, stride, blurpool):
  kind = BlurredConv if blurpool and stride > 1 and inputs >= 16 else torch.nn.Conv2d
  return kind(inputs, outputs, size, stride, size // 2, bias=False)


class TorchBlock(torch.nn.Module):
  def __init__(self, inputs, features, stride, bottleneck, blurpool):
    super().__init__()
    outputs = 4 * features if bottleneck else features
    # size, outputs, stride
    convs = (
      [(1, features, 1), (3, features, stride), (1, outputs, 1)]
      if bottleneck
      else [(3, features, stride), (3, outputs, 1)]
    )
    self.layers = len(convs)
    channels = inputs
    for number, (size, width, step) in enumerate(convs, 1):
      setattr(self, f"conv{number}", make_conv(channels, width, size, step, blurpool))
      setattr(self, f"bn{number}", torch.nn.BatchNorm2d(width))
      channels = width
    self.downsample = None
    if stride != 1 or inputs != outputs:
      self.downsample = torch.nn.Sequential(
        make_conv(inputs, outputs, 1, stride, blurpool), torch.nn.BatchNorm2d(outputs)
      )

  def forward(self, x):
    y = x
    for number in range(1, self.layers + 1):
      y = getattr(self, f"bn{number}")(getattr(self, f"conv{number}")(y))
      if number < self.layers:
        y = torch.relu(y)
    return torch.relu(y + (x if self.downsample is None else self.downsample(x)))


class TorchResNet(torch.nn.Module):
  def __init__(self, depth, classes=1000, width=64, blurpool=False, whiten=False):
    super().__init__()
    self.whiten = make_conv(3, 27, 3, 2, blurpool).requires_grad_(False) if whiten else None
    size, stride = (3, 1) if whiten else (7, 2)
    self.conv1 = make_conv(54 if whiten else 3, width, size, stride, blurpool)
    self.bn1 = torch.nn.BatchNorm2d(width)
    channels = width
    for stage, blocks in enumerate(BLOCKS[depth]):
      features, layer = width * 2**stage, torch.nn.Sequential()
      for number in range(blocks):
        stride = 2 if number == 0 and stage > 0 else 1
        layer.append(TorchBlock(channels, features, stride, depth >= 50, blurpool))
        channels = 4 * features if depth >= 50 else features
      setattr(self, f"layer{stage + 1}", layer)
    self.fc = torch.nn.Linear(channels, classes)

  def forward(self, x):
    if self.whiten is not None:
      x = self.whiten(x)
      x = torch.relu(torch.cat([x, -x], 1))
    x = functional.max_pool2d(torch.relu(self.bn1(self.conv1(x))), 3, 2, 1)
    x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
    return self.fc(x.mean((2, 3)))


def random_resnet(depth, seed=0, **fields):
  """A TorchResNet with random weights whose norms and statistics are not at their initial values.

  Kernels are Kaiming's by fan-out; the last norms of the blocks are small, or the activations of 50
  layers would grow until rounding is all that is compared.
  """
  torch.manual_seed(seed)
  net = TorchResNet(depth, **fields)
  for name, module in net.named_modules():
    if isinstance(module, torch.nn.Conv2d):
      torch.nn.init.kaiming_normal_(module.weight, mode="fan_out")
    if isinstance(module, torch.nn.BatchNorm2d):
      low, high = (0.1, 0.4) if name.endswith(f"bn{3 if depth >= 50 else 2}") else (0.5, 1.5)
      torch.nn.init.uniform_(module.weight, low, high)
      torch.nn.init.normal_(module.bias, 0, 0.2)
      torch.nn.init.normal_(module.running_mean, 0, 0.2)
      torch.nn.init.uniform_(module.running_var, 0.5, 1.5)
  return net
