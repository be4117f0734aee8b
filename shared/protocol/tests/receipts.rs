//! Receipts: the signed bytes, and that no part of them can be changed.

use barnraise_protocol::access::{AccessToken, Claims, KeyPair, Signature, TokenId, UnixTime};
use barnraise_protocol::bulk::Transfer;
use barnraise_protocol::codec::TensorCodec;
use barnraise_protocol::gradient::{Accepted, Offer};
use barnraise_protocol::receipt::{RUN_ID_BYTES_MAX, Receipt, ReceiptError, SignedReceipt};

fn pair(seed: u8) -> KeyPair {
    KeyPair::from_seed(&[seed; 32])
}

fn receipt() -> Receipt {
    Receipt {
        run_id: "barn".into(),
        peer: pair(2).public(),
        reducer: pair(1).public(),
        contribution_id: 7,
        epoch: 300,
        n_samples: 64,
        n_bytes: 1000,
        milliseconds: 2500,
        issued_at: UnixTime(1_800_000_000),
    }
}

fn signed() -> SignedReceipt {
    receipt().sign(&pair(1)).unwrap()
}

fn offer() -> Offer {
    let transfer = Transfer { n_bytes: 1000, ..Transfer::of(&[]) };
    let (n_values, codec) = (500, TensorCodec::F16);
    Offer { contribution_id: 7, epoch: 300, n_samples: 64, loss: 1.0, n_values, codec, transfer }
}

#[test]
fn a_receipt_is_good_for_its_offer_and_says_what_was_accepted() {
    let signed = signed();
    assert_eq!(signed.verify(), Ok(()));
    assert_eq!(signed.verify_for("barn", Some(pair(2).public()), &offer()), Ok(()));
    assert_eq!(signed.verify_for("barn", None, &offer()), Ok(()));
    assert_eq!(signed.accepted(), Accepted { contribution_id: 7, epoch: 300, n_samples: 64 });
}

#[test]
fn no_part_of_a_receipt_can_be_changed() {
    let changes: [fn(&mut SignedReceipt); 11] = [
        |signed| signed.receipt.run_id = "shed".into(),
        |signed| signed.receipt.run_id.push('\0'),
        |signed| signed.receipt.peer = pair(3).public(),
        |signed| signed.receipt.reducer = pair(3).public(),
        |signed| signed.receipt.contribution_id += 1,
        |signed| signed.receipt.epoch += 1,
        |signed| signed.receipt.n_samples += 1,
        |signed| signed.receipt.n_bytes += 1,
        |signed| signed.receipt.milliseconds += 1,
        |signed| signed.receipt.issued_at = UnixTime(1_800_000_001),
        |signed| signed.signature = Signature::from([4; 64]),
    ];
    for (index, change) in changes.into_iter().enumerate() {
        let mut changed = signed();
        change(&mut changed);
        let reducer = changed.receipt.reducer;
        assert_eq!(changed.verify(), Err(ReceiptError::Signature { reducer }), "change {index}");
    }
    let by_another = receipt().sign(&pair(3)).unwrap();
    assert_eq!(by_another.verify(), Err(ReceiptError::Signature { reducer: pair(1).public() }));
}

#[test]
fn a_receipt_for_something_else_names_what_differs() {
    let (alice, bob) = (pair(2).public(), pair(3).public());
    let refusal = |run_id, peer, offer: &Offer| signed().verify_for(run_id, peer, offer).unwrap_err();
    let other_run = ReceiptError::Run { want: "shed".into(), got: "barn".into() };
    assert_eq!(refusal("shed", Some(alice), &offer()), other_run);
    assert_eq!(refusal("barn", Some(bob), &offer()), ReceiptError::Peer { want: bob, got: alice });
    let transfer = Transfer { n_bytes: 1001, ..offer().transfer };
    for (offer, what, want, got) in [
        (Offer { contribution_id: 8, ..offer() }, "the contribution", 8, 7),
        (Offer { epoch: 301, ..offer() }, "the epoch", 301, 300),
        (Offer { n_samples: 65, ..offer() }, "the samples", 65, 64),
        (Offer { transfer, ..offer() }, "the bytes", 1001, 1000),
    ] {
        assert_eq!(refusal("barn", Some(alice), &offer), ReceiptError::Offer { what, want, got });
    }
}

#[test]
fn a_run_id_is_bounded_when_it_is_signed_and_when_it_is_read() {
    let run_id = |n_bytes| Receipt { run_id: "x".repeat(n_bytes), ..receipt() };
    assert_eq!(run_id(RUN_ID_BYTES_MAX).sign(&pair(1)).unwrap().verify(), Ok(()));
    let too_long = ReceiptError::RunIdTooLong { got: RUN_ID_BYTES_MAX + 1 };
    assert_eq!(run_id(RUN_ID_BYTES_MAX + 1).sign(&pair(1)).unwrap_err(), too_long);
    let receipt = run_id(RUN_ID_BYTES_MAX + 1);
    assert_eq!(SignedReceipt { receipt, signature: signed().signature }.verify(), Err(too_long));
}

/// The bytes under the signature are part of the format: other programs sign and check the same.
#[test]
fn what_is_signed_is_the_domain_and_the_fields_in_order() {
    let mut bytes = b"barnraise receipt 1\0\x04barn".to_vec();
    bytes.extend(pair(2).public().0);
    bytes.extend(pair(1).public().0);
    // Varints: 7, 300, 64, 1000, 2500, 1_800_000_000.
    bytes.extend([7, 0xac, 2, 64, 0xe8, 7, 0xc4, 0x13, 0x80, 0xa4, 0xa7, 0xda, 6]);
    assert_eq!(signed().signature, pair(1).sign(&bytes));
    // No other message that the same key signs is accepted as a receipt.
    let (run_id, user, peer) = ("barn".into(), String::new(), pair(2).public());
    let claims =
        Claims { run_id, user, peer, expires_at: UnixTime(0), token_id: TokenId([0; 16]), may_host: false };
    let signature = AccessToken::sign(&pair(1), claims).unwrap().signature;
    assert!(SignedReceipt { receipt: receipt(), signature }.verify().is_err());
}
