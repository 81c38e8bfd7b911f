//! A writer of GGUF files, as far as tests need one: whatever a file may claim can be written.

/// One setting, as bytes.
pub(crate) fn setting(key: &str, kind: u32, value: &[u8]) -> Vec<u8> {
    [&text(key), kind.to_le_bytes().as_slice(), value].concat()
}

/// A length and the bytes.
pub(crate) fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

pub(crate) fn u32_setting(key: &str, value: u32) -> Vec<u8> {
    setting(key, 4, &value.to_le_bytes())
}

pub(crate) fn f32_setting(key: &str, value: f32) -> Vec<u8> {
    setting(key, 6, &value.to_le_bytes())
}

pub(crate) fn text_setting(key: &str, value: &str) -> Vec<u8> {
    setting(key, 8, &text(value))
}

/// A list: the kind of its elements, how many it claims, their bytes.
pub(crate) fn list_setting(key: &str, kind: u32, len: u64, elements: &[u8]) -> Vec<u8> {
    setting(key, 9, &[&kind.to_le_bytes(), len.to_le_bytes().as_slice(), elements].concat())
}

pub(crate) fn texts_setting(key: &str, texts: &[&str]) -> Vec<u8> {
    list_setting(key, 8, texts.len() as u64, &texts.iter().flat_map(|t| text(t)).collect::<Vec<u8>>())
}

/// A row of the tensor table; `dims` innermost first, as in the file.
pub(crate) fn tensor(name: &str, dims: &[u64], number: u32, offset: u64) -> Vec<u8> {
    let mut bytes = text(name);
    bytes.extend((dims.len() as u32).to_le_bytes());
    bytes.extend(dims.iter().flat_map(|dim| dim.to_le_bytes()));
    bytes.extend(number.to_le_bytes());
    bytes.extend(offset.to_le_bytes());
    bytes
}

/// A file with these counts and parts, padded to 32, with the data after it.
pub(crate) fn raw(version: u32, num_tensors: u64, num_keys: u64, parts: &[Vec<u8>], data: &[u8]) -> Vec<u8> {
    let mut bytes = b"GGUF".to_vec();
    bytes.extend(version.to_le_bytes());
    bytes.extend(num_tensors.to_le_bytes());
    bytes.extend(num_keys.to_le_bytes());
    bytes.extend(parts.concat());
    bytes.resize(bytes.len().next_multiple_of(32), 0);
    bytes.extend(data);
    bytes
}

/// A well-formed file: settings and tensors `(name, dims innermost first, type, bytes)`.
pub(crate) fn file(settings: &[Vec<u8>], tensors: &[(String, Vec<u64>, u32, Vec<u8>)]) -> Vec<u8> {
    let (mut table, mut data) = (Vec::new(), Vec::new());
    for (name, dims, number, bytes) in tensors {
        data.resize(data.len().next_multiple_of(32), 0);
        table.push(tensor(name, dims, *number, data.len() as u64));
        data.extend(bytes);
    }
    raw(3, tensors.len() as u64, settings.len() as u64, &[settings, &table].concat(), &data)
}
