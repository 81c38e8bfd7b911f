//! What computes: the CPU, or a GPU through Vulkan. Tokens do not depend on it.

use std::fmt;
use std::str::FromStr;

use checkpoint::{Checkpoint, LoadError};
use kernels::memory_limits::{Headroom, Limit};
use kernels::{Cpu, CpuOptions};
use model::{Forward, LoadOptions, Standby};
use vulkan::{Listed, Vulkan, VulkanOptions};

use crate::options::StartError;

/// `--device`: what computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum DeviceChoice {
    /// The CPU.
    #[default]
    Cpu,
    /// The GPU of this number, in the order of [`vulkan::list`].
    Gpu(usize),
    /// The first GPU, unless it is software or cannot hold this model: then the CPU.
    Auto,
}

impl FromStr for DeviceChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<DeviceChoice, String> {
        match (text, text.strip_prefix("gpu:")) {
            ("cpu", _) => Ok(DeviceChoice::Cpu),
            ("gpu", _) => Ok(DeviceChoice::Gpu(0)),
            ("auto", _) => Ok(DeviceChoice::Auto),
            (_, Some(number)) if number.parse::<u16>().is_ok_and(|index| index.to_string() == number) => {
                Ok(DeviceChoice::Gpu(number.parse().expect("it is a number")))
            }
            _ => Err("cpu, gpu, gpu:N with the number that `doctor --device gpu` shows, or auto".to_owned()),
        }
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceChoice::Cpu => write!(f, "cpu"),
            DeviceChoice::Gpu(index) => write!(f, "gpu:{index}"),
            DeviceChoice::Auto => write!(f, "auto"),
        }
    }
}

impl DeviceChoice {
    /// The number of the GPU and what it is; `None`: the CPU computes.
    fn gpu(self) -> Result<Option<(usize, Listed)>, StartError> {
        match self {
            DeviceChoice::Cpu => Ok(None),
            DeviceChoice::Gpu(index) => {
                let mut all = vulkan::list().map_err(not_usable)?;
                if index >= all.len() {
                    let names = all.iter().map(Listed::to_string).collect();
                    return Err(not_usable(vulkan::VulkanError::NoDevice { index, names }));
                }
                Ok(Some((index, all.swap_remove(index))))
            }
            DeviceChoice::Auto => {
                let all = vulkan::list().unwrap_or_default();
                let first = all.into_iter().next().filter(|first| first.kind != "software");
                if first.is_none() {
                    tracing::info!("there is no GPU but software: the CPU computes");
                }
                Ok(first.map(|first| (0, first)))
            }
        }
    }

    /// Opens the GPU; `None`: the CPU computes, which is `cpu`. On a GPU that one packs weights, and its order of sums is
    /// the GPU's.
    pub fn open(self, cpu: CpuOptions) -> Result<Option<Vulkan>, StartError> {
        let Some((index, _)) = self.gpu()? else { return Ok(None) };
        match Vulkan::open(Cpu::new(cpu)?, VulkanOptions { index, ..VulkanOptions::default() }) {
            Err(error) if self != DeviceChoice::Auto => Err(not_usable(error)),
            opened => Ok(opened.inspect_err(|error| tracing::warn!(%error, "the CPU computes")).ok()),
        }
    }

    /// What a GPU loaded; `None`: the CPU is to load it, as `auto` has it of models whose rows a GPU does not see at
    /// once, and where it was lost meanwhile.
    pub(crate) fn or_cpu<T>(self, loaded: Result<T, StartError>) -> Result<Option<T>, StartError> {
        match loaded {
            Err(error @ StartError::Load(LoadError::Option { option: "device", .. })) if self == DeviceChoice::Auto => {
                tracing::warn!(%error, "the CPU computes");
                Ok(None)
            }
            loaded => loaded.map(Some),
        }
    }

    /// What a GPU with memory of its own has for weights and cache, and the most bytes of one layer's cache; of others
    /// `host`.
    pub(crate) fn room(self, host: Option<Headroom>) -> Result<(Option<Headroom>, u64), StartError> {
        let Some((_, listed)) = self.gpu()? else { return Ok((host, u64::MAX)) };
        let room = match listed.kind {
            // A tenth is its driver's and other programs'.
            "discrete" => {
                let bytes = listed.memory_bytes / 10 * 9;
                let own = Headroom { bytes, limit: Limit::Device { bytes: listed.memory_bytes } };
                match host {
                    // The CPU may be the one that has to hold it.
                    Some(host) if self == DeviceChoice::Auto && host.bytes < bytes => Some(host),
                    _ => Some(own),
                }
            }
            _ => host,
        };
        Ok((room, listed.binding_bytes))
    }
}

/// The CPU, to go on with the same bits where a GPU is lost.
pub(crate) fn standby(cpu: CpuOptions, checkpoint: &Checkpoint, load: &LoadOptions) -> Result<Standby, StartError> {
    let (checkpoint, load) = (checkpoint.clone(), load.clone());
    let again = move || {
        let cpu = Cpu::new(cpu).map_err(|error| LoadError::Option { option: "standby", problem: error.to_string() })?;
        let runner = model::load(cpu, &checkpoint, &load, &mut |_| {})?;
        Ok(Box::new(runner) as Box<dyn Forward>)
    };
    Standby::new(again).map_err(StartError::Thread)
}

fn not_usable(error: vulkan::VulkanError) -> StartError {
    StartError::Option { option: "--device", problem: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_named_by_its_number() {
        use DeviceChoice::{Auto, Cpu, Gpu};
        for (text, wanted) in [
            ("cpu", Some(Cpu)),
            ("gpu", Some(Gpu(0))),
            ("gpu:0", Some(Gpu(0))),
            ("gpu:12", Some(Gpu(12))),
            ("auto", Some(Auto)),
        ] {
            assert_eq!(text.parse().ok(), wanted, "{text}");
        }
        for text in ["", "GPU", "gpu:", "gpu:-1", "gpu:01", "gpu:1e3", "gpu:99999", "cuda", "cpu:0"] {
            assert!(text.parse::<DeviceChoice>().is_err(), "{text}");
        }
        assert_eq!(Gpu(3).to_string().parse(), Ok(Gpu(3)));
    }
}
